//! Filter of a packet socket, as a program of the classic Berkeley packet filter.
//!
//! Invariant: a filter accepts every frame that the client may need. A filter checks only some
//! fields of a frame, so it also accepts other frames. The client checks each frame again.
//!
//! No crate or library is used to make the program. With the crates `bpf` and `classic_bpf`, the
//! caller still has to count the instructions that each jump skips. libpcap compiles filters from
//! text, but then the agent, which has privileges, would link a C library.

/// Frames that a client needs, or that the kernel hands to the agent's socket. Each variant
/// includes the frames of the variants before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameFilter {
    /// No frame.
    Nothing,
    /// UDP to port 68, and requests of DHCP clients to port 67.
    Dhcp,
    /// UDP to port 68, requests of DHCP clients to port 67, and ARP.
    DhcpAndArp,
}

/// Instruction of a BPF program, with the fields of `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    /// Operation code.
    pub code: u16,
    /// Number of instructions that are skipped if a comparison is true.
    pub jt: u8,
    /// Number of instructions that are skipped if a comparison is false.
    pub jf: u8,
    /// Operand of the operation.
    pub k: u32,
}

/// Operation code: loads 16 bits into register A, from offset `k` of the frame. [`LD_BYTE`] loads 8
/// bits.
const LD_HALF: u16 = 0x28;
const LD_BYTE: u16 = 0x30;
/// Operation code: loads 16 bits into register A, from offset `X + k` of the frame. [`LD_BYTE_X`]
/// loads 8 bits.
const LD_HALF_X: u16 = 0x48;
const LD_BYTE_X: u16 = 0x50;
/// Operation code: sets register X to four times the lower 4 bits of the byte at offset `k`. The
/// result is the length of the IPv4 header that begins at `k`.
const LDX_HEADER: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// Offset at which a program reads the VLAN tag of the frame (`SKF_AD_OFF + SKF_AD_VLAN_TAG`). The
/// network card or Linux has removed the tag from the frame itself.
const VLAN_TAG: u32 = 0xffff_f000 + 44;
const VLAN_ID: u32 = 0x0fff;
/// Offset at which a program reads the direction of the frame (`SKF_AD_OFF + SKF_AD_PKTTYPE`). For
/// a frame that was sent, the value is [`OUTGOING`].
const DIRECTION: u32 = 0xffff_f000 + 4;
const OUTGOING: u32 = 4;
const WHOLE_FRAME: u32 = 0x0004_0000;

/// Target of a jump in an unfinished program. [`BpfProgram::end`] replaces it by the number of
/// instructions to skip.
#[derive(Clone, Copy)]
enum JumpTarget {
    Next,
    Drop,
    Pass,
    Arp,
}

/// Program that is being made. Each entry is one instruction: (operation code, operand, target if
/// true, target if false).
struct BpfProgram(Vec<(u16, u32, JumpTarget, JumpTarget)>);

impl BpfProgram {
    fn load(&mut self, code: u16, k: u32) -> &mut Self {
        self.0.push((code, k, JumpTarget::Next, JumpTarget::Next));
        self
    }

    fn jump(&mut self, code: u16, k: u32, yes: JumpTarget, no: JumpTarget) -> &mut Self {
        self.0.push((code, k, yes, no));
        self
    }

    fn end(&self, arp: Option<usize>) -> Vec<BpfInstruction> {
        let length = self.0.len();
        let distance = |at: usize, to: JumpTarget| {
            let target = match to {
                JumpTarget::Next => at + 1,
                JumpTarget::Arp => arp.unwrap_or(length),
                JumpTarget::Drop => length,
                JumpTarget::Pass => length + 1,
            };
            u8::try_from(target - at - 1).unwrap_or(u8::MAX)
        };
        let op = |(at, (code, k, yes, no)): (usize, &(u16, u32, JumpTarget, JumpTarget))| {
            BpfInstruction { code: *code, jt: distance(at, *yes), jf: distance(at, *no), k: *k }
        };
        let mut ops: Vec<BpfInstruction> = self.0.iter().enumerate().map(op).collect();
        ops.push(BpfInstruction { code: RETURN, jt: 0, jf: 0, k: 0 });
        ops.push(BpfInstruction { code: RETURN, jt: 0, jf: 0, k: WHOLE_FRAME });
        ops
    }
}

/// Program that lets the frames of `accepted` pass, with any hardware address. A fragment, a frame
/// of a VLAN, and a frame that the socket's own interface sends never pass.
pub fn filter(accepted: FrameFilter) -> Vec<BpfInstruction> {
    if accepted == FrameFilter::Nothing {
        return vec![BpfInstruction { code: RETURN, jt: 0, jf: 0, k: 0 }];
    }
    let arp = accepted == FrameFilter::DhcpAndArp;
    let mut program = BpfProgram(Vec::new());
    let no_ip = if arp { JumpTarget::Arp } else { JumpTarget::Drop };
    program.load(LD_BYTE, DIRECTION).jump(JUMP_EQUAL, OUTGOING, JumpTarget::Drop, JumpTarget::Next);
    program.load(LD_HALF, VLAN_TAG).jump(JUMP_ANY_BIT, VLAN_ID, JumpTarget::Drop, JumpTarget::Next);
    program.load(LD_HALF, 12).jump(JUMP_EQUAL, 0x0800, JumpTarget::Next, no_ip);
    program.load(LD_BYTE, 23).jump(JUMP_EQUAL, 17, JumpTarget::Next, JumpTarget::Drop);
    program.load(LD_HALF, 20).jump(JUMP_ANY_BIT, 0x3fff, JumpTarget::Drop, JumpTarget::Next);
    // The UDP header starts after 14 octets of Ethernet header and X octets of IPv4 header. The
    // DHCP message starts after 8 more octets.
    program.load(LDX_HEADER, 14);
    program.load(LD_HALF_X, 14 + 2).jump(JUMP_EQUAL, 68, JumpTarget::Pass, JumpTarget::Next);
    program.jump(JUMP_EQUAL, 67, JumpTarget::Next, JumpTarget::Drop);
    program.load(LD_BYTE_X, 22).jump(JUMP_EQUAL, 1, JumpTarget::Pass, JumpTarget::Drop);
    let at = program.0.len();
    if arp {
        // Register A still holds the type of the frame.
        program.jump(JUMP_EQUAL, 0x0806, JumpTarget::Pass, JumpTarget::Drop);
    }
    program.end(arp.then_some(at))
}

#[cfg(test)]
mod tests;
