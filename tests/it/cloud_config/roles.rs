//! Harvester's roles for guest clusters, rule by rule, as its releases ship them
//! (harvester/harvester, deploy/charts/harvester/templates/rbac.yaml; the same in v1.3.0 to v1.3.2,
//! and in v1.8.0 to v1.8.2 and v1.9.0-rc6), and the rights of every account there
//! (pkg/data/rbac.go, pkg/settings/settings.go). The cloud provider's role is the same in all.
//! v1.5.2 adds VolumeAttachments to v1.5.0.

/// A release and the rules of its roles.
pub(crate) struct Release {
    pub(crate) name: &'static str,
    /// Rules of `harvesterhci.io:csi-driver`.
    csi_driver: &'static str,
    /// Rules of `harvester-authenticated` beside those of every release.
    authenticated: &'static str,
}

/// Releases, the oldest first.
pub(crate) const RELEASES: [Release; 3] = [
    Release {
        name: "1.3",
        csi_driver: "
  - {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [get, list, watch]}",
        authenticated: "",
    },
    Release {
        name: "1.5",
        csi_driver: "
  - {apiGroups: [storage.k8s.io], resources: [storageclasses, volumeattachments], verbs: [get, list, watch]}
  - {apiGroups: [harvesterhci.io], resources: [networkfilesystems, networkfilesystems/status], verbs: ['*']}
  - {apiGroups: [longhorn.io], resources: [volumes, volumes/status], verbs: [get, list]}",
        authenticated: "",
    },
    Release {
        name: "1.8",
        csi_driver: "
  - {apiGroups: [storage.k8s.io], resources: [storageclasses, volumeattachments], verbs: [get, list, watch]}
  - apiGroups: [harvesterhci.io]
    resources: [networkfilesystems, networkfilesystems/status, volumeremotebackups, volumeremoterestores]
    verbs: ['*']
  - apiGroups: [harvesterhci.io]
    resources: [settings]
    verbs: [get, list]
    resourceNames: [csi-online-expand-validation, csi-driver-config]
  - {apiGroups: [longhorn.io], resources: [volumes, volumes/status], verbs: [get, list]}
  - apiGroups: [snapshot.storage.k8s.io]
    resources: [volumesnapshots, volumesnapshotcontents, volumesnapshotclasses,
                volumesnapshots/status, volumesnapshotcontents/status]
    verbs: ['*']
  - {apiGroups: [kubevirt.io], resources: [virtualmachines], verbs: [patch]}",
        authenticated: "
  - apiGroups: [management.cattle.io]
    resources: [settings]
    verbs: [get, watch]
    resourceNames: [system-namespaces]",
    },
];

impl Release {
    pub(crate) fn newest() -> &'static Self {
        &RELEASES[2]
    }

    /// The roles as manifests, one document each.
    pub(crate) fn roles(&self) -> String {
        let role = |name: &str, rules: &str| {
            format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n\
                 metadata: {{name: \"{name}\"}}\nrules:{rules}\n---\n"
            )
        };
        let authenticated = format!("{AUTHENTICATED}{}", self.authenticated);
        role("harvesterhci.io:cloudprovider", CLOUD_PROVIDER)
            + &role("harvesterhci.io:csi-driver", self.csi_driver)
            + &role("harvester-authenticated", &authenticated)
            + BINDING
    }
}

const CLOUD_PROVIDER: &str = "
  - apiGroups: [loadbalancer.harvesterhci.io]
    resources: [loadbalancers]
    verbs: [get, list, watch, update, create, delete]
  - apiGroups: [subresources.kubevirt.io]
    resources: [virtualmachines/addvolume, virtualmachines/removevolume,
                virtualmachineinstances/addvolume, virtualmachineinstances/removevolume,
                virtualmachineinstances/guestosinfo]
    verbs: [get, update]
  - apiGroups: [kubevirt.io]
    resources: [virtualmachines, virtualmachineinstances]
    verbs: [get, list, watch]
  - {apiGroups: [''], resources: [pods], verbs: [get, list, watch]}
  - {apiGroups: [''], resources: [persistentvolumeclaims, persistentvolumeclaims/status], verbs: ['*']}";

const AUTHENTICATED: &str = "
  - apiGroups: [harvesterhci.io]
    resources: [settings]
    verbs: [get, watch]
    resourceNames: [server-version, default-storage-class, harvester-csi-ccm-versions,
                    default-vm-termination-grace-period-seconds]
  - {apiGroups: [network.harvesterhci.io], resources: [clusternetworks], verbs: [get, list, watch]}
  - {apiGroups: [''], resources: [namespaces], verbs: [get, watch], resourceNames: [harvester-public]}";

const BINDING: &str = "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: harvester-authenticated}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: harvester-authenticated}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: \"system:authenticated\"}]
";
