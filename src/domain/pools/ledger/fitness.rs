//! Fitness of a free address for one LoadBalancer. The allocator judges it, because a ledger knows
//! only the owners in its own pool.

/// Whether a free address may be given to a LoadBalancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFitness {
    /// May be given.
    Good,
    /// The address is the expected address of another LoadBalancer. It may be given only if no
    /// other address is left.
    Expected,
    /// The address must not be given, because another LoadBalancer keeps it from a deleted pool.
    /// Exception: if this LoadBalancer publishes the address and has no claim, its claim may be
    /// restored.
    Withheld,
    /// The address must not be given, for one of these reasons:
    /// * The pool's addresses are announced for this LoadBalancer on a second segment too, and
    ///   there another LoadBalancer has the address, by a claim or by a reservation.
    /// * This LoadBalancer is of type vm and publishes the address already, from another pool.
    Taken,
}
