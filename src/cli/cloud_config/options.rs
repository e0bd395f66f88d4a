//! Values of options, as the command line names them.

use clap::ValueEnum;

use crate::domain::credentials::guest_account::CsiAccess;
use crate::domain::credentials::guest_account::output::OutputForm;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputKind {
    /// Kubeconfig file.
    Kubeconfig,
    /// Secret for the guest: kube-system/harvester-csi-config.
    Secret,
    /// Secret for the Rancher that provisions the guest: fleet-default/harvesterconfig-CLUSTER.
    RancherSecret,
    /// User data for nodes of RKE2.
    CloudInitRke2,
    /// User data for nodes of K3s.
    CloudInitK3s,
    /// Secret for a guest of K3s, and HelmCharts of the cloud provider and the CSI driver.
    #[value(name = "helm-chart-k3s")]
    HelmChartK3s,
}

impl From<OutputKind> for OutputForm {
    fn from(output: OutputKind) -> Self {
        match output {
            OutputKind::Kubeconfig => Self::Kubeconfig,
            OutputKind::Secret => Self::Secret,
            OutputKind::RancherSecret => Self::RancherSecret,
            OutputKind::CloudInitRke2 => Self::CloudInitRke2,
            OutputKind::CloudInitK3s => Self::CloudInitK3s,
            OutputKind::HelmChartK3s => Self::HelmChartK3s,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CsiRights {
    /// The rights that Harvester gives, for the whole cluster.
    Harvester,
    /// Rights in the guest's namespace, and only the required rights elsewhere.
    Narrow,
    /// No rights.
    None,
}

impl From<CsiRights> for CsiAccess {
    fn from(rights: CsiRights) -> Self {
        match rights {
            CsiRights::Harvester => Self::Harvester,
            CsiRights::Narrow => Self::Narrow,
            CsiRights::None => Self::None,
        }
    }
}
