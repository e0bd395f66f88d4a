//! Fitness of a free address for one LoadBalancer. The allocator judges it, because a ledger knows
//! only the owners in its own pool.

/// Whether a free address may be given to a LoadBalancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFitness {
    /// May be given.
    Good,
    /// May be given only when no other address is left. The address is the expected address of
    /// another LoadBalancer.
    Expected,
    /// Must not be given, because the address is reserved for another LoadBalancer, which has it
    /// from a deleted pool. Exception: if this LoadBalancer publishes the address already, and no
    /// ledger has its claim, the claim may be restored.
    Withheld,
    /// Must not be given, for one of these reasons:
    /// * Another LoadBalancer has the address, by a claim or by a reservation, on a network where
    ///   this LoadBalancer's address would be announced.
    /// * This LoadBalancer is of type vm and publishes the address already, from another pool.
    Taken,
}
