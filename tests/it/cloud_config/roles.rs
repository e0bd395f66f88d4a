//! Harvester's two roles for guest clusters, as it ships them. The cloud provider's is that of its chart
//! (harvester/harvester, deploy/charts/harvester/templates/rbac.yaml). The CSI driver's is what its
//! upgrade to 1.4 writes (package/upgrade/upgrade_manifests.sh) with what its proposals on online
//! expansion and on snapshots add, and VolumeAttachments, which the driver asks for since.

pub(crate) const HARVESTERS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "harvesterhci.io:cloudprovider"}
rules:
  - {apiGroups: [loadbalancer.harvesterhci.io], resources: [loadbalancers],
     verbs: [get, list, watch, create, update, delete]}
  - {apiGroups: [kubevirt.io], resources: [virtualmachines, virtualmachineinstances], verbs: [get, list, watch]}
  - apiGroups: [subresources.kubevirt.io]
    resources: [virtualmachines/addvolume, virtualmachines/removevolume,
                virtualmachineinstances/addvolume, virtualmachineinstances/removevolume]
    verbs: [get, update]
  - {apiGroups: [""], resources: [nodes, pods], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [persistentvolumeclaims, persistentvolumeclaims/status], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "harvesterhci.io:csi-driver"}
rules:
  - {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [get, list, watch]}
  - {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list]}
  - {apiGroups: [harvesterhci.io], resources: [networkfilesystems, networkfilesystems/status], verbs: ["*"]}
  - {apiGroups: [harvesterhci.io], resources: [settings], verbs: [get, list],
     resourceNames: [csi-driver-config, csi-online-expand-validation]}
  - {apiGroups: [longhorn.io], resources: [volumes, volumes/status], verbs: [get, list]}
  - {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots, volumesnapshotcontents], verbs: ["*"]}
"#;
