//! Metrics of leadership, of CRDs that other software may change, and of the Go controller's
//! finalizers.

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::MetricMaker;

metric_set! {
    /// Metrics of leadership, of CRDs, and of the Go controller's finalizers on VMs.
    pub struct LeadershipMetrics {
        /// 1 on the leader, 0 on the other replicas.
        pub leader: IntGauge = gauge("hgo_leader", "1 on the replica that leads");
        /// 1 while another controller holds the Lease. The label is the identity of that
        /// controller.
        pub other_controller: IntGaugeVec = gauges(
            "hgo_other_controller_leads",
            "1 while another controller than this operator holds the Lease",
            &["holder"],
        );
        /// 1 while another form has replaced the operator's form of the CRD, otherwise 0. Also 0 if
        /// the operator's form was never installed. The label is the name of the CRD. Only the
        /// leader sets this gauge.
        pub crd_replaced: IntGaugeVec = gauges(
            "hgo_crd_replaced",
            "1 while another form of the CRD is in the place of the operator's",
            &["crd"],
        );
        /// Number of VirtualMachines and VirtualMachineInstances with a finalizer of the Go
        /// controller. Only the leader sets this gauge.
        pub go_finalizers: IntGauge = gauge(
            "hgo_go_finalizers",
            "VirtualMachines and VirtualMachineInstances with a finalizer of the Go controller",
        );
        /// Repairs of CRDs, by CRD. A repair puts back the operator's form of the CRD, or only the
        /// CRD's status subresource.
        pub crd_repairs: IntCounterVec = counters(
            "hgo_crd_repairs_total",
            "Repairs of CRDs by the operator, of their form or of their status subresource",
            &["crd"],
        );
    }
}
