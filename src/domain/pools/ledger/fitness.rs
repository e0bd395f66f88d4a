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
    /// Must not be given anew. The address is reserved for another LoadBalancer, whose pool was
    /// deleted. A LoadBalancer that publishes the address already keeps it.
    Withheld,
    /// Must not be given: another LoadBalancer has the address on a network where this
    /// LoadBalancer's address would be announced, or the Service of this LoadBalancer has the
    /// address already, from another pool.
    Taken,
}
