//! The answer of a router that refuses: a TCP reset for the sender of a packet.
//!
//! Pure; bytes of an IPv4 packet in, bytes of another out (RFC 9293, section 3.10.7.1).

/// Shortest IPv4 and TCP headers.
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// True if the packet opens a new TCP connection.
pub(super) fn opens_a_connection(packet: &[u8]) -> bool {
    tcp(packet).is_some_and(|tcp| tcp[13] & (SYN | ACK) == SYN)
}

/// The reset that ends the connection of `packet` for its sender; `None` if the packet is not TCP, or a reset itself.
pub(super) fn reset(packet: &[u8]) -> Option<Vec<u8>> {
    let tcp = tcp(packet)?;
    let flags = tcp[13];
    if flags & RST != 0 {
        return None;
    }
    let mut answer = vec![0; IP_BYTES + TCP_BYTES];
    let (ip, reset) = answer.split_at_mut(IP_BYTES);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IP_BYTES + TCP_BYTES) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, PROTOCOL_TCP);
    ip[12..16].copy_from_slice(&packet[16..20]);
    ip[16..20].copy_from_slice(&packet[12..16]);
    reset[..2].copy_from_slice(&tcp[2..4]);
    reset[2..4].copy_from_slice(&tcp[..2]);
    reset[12] = 5 << 4;
    if flags & ACK != 0 {
        // The sequence number the sender expects: a reset is accepted only there.
        reset[4..8].copy_from_slice(&tcp[8..12]);
        reset[13] = RST;
    } else {
        let expected = u32_at(tcp, 4).wrapping_add(length_of(packet, tcp));
        reset[8..12].copy_from_slice(&expected.to_be_bytes());
        reset[13] = RST | ACK;
    }
    let sum = checksum(ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = sum_of(&ip[12..20]) + u32::from(PROTOCOL_TCP) + TCP_BYTES as u32;
    let sum = checksum(reset, pseudo);
    reset[16..18].copy_from_slice(&sum.to_be_bytes());
    Some(answer)
}

/// The TCP part of a whole, unfragmented IPv4 packet.
fn tcp(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let is_tcp = first >> 4 == 4 && header >= IP_BYTES && *packet.get(9)? == PROTOCOL_TCP;
    let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
    let tcp = packet.get(header..)?;
    (is_tcp && fragment == 0 && tcp.len() >= TCP_BYTES).then_some(tcp)
}

/// Sequence numbers that the segment takes.
fn length_of(packet: &[u8], tcp: &[u8]) -> u32 {
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
    let headers = packet.len() - tcp.len() + usize::from(tcp[12] >> 4) * 4;
    let control = u32::from(tcp[13] & SYN != 0) + u32::from(tcp[13] & FIN != 0);
    total.saturating_sub(headers) as u32 + control
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn sum_of(bytes: &[u8]) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    words.map(u32::from).sum()
}

/// The Internet checksum of `bytes`, added to a previous sum.
fn checksum(bytes: &[u8], begun: u32) -> u16 {
    let mut sum = begun + sum_of(bytes);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment from 10.0.0.1:4660 to 10.0.0.2:80 with these flags and three bytes of data.
    fn segment(flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 43];
        (packet[0], packet[3], packet[9]) = (0x45, 43, PROTOCOL_TCP);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[20..32].copy_from_slice(&[0x12, 0x34, 0, 80, 0, 0, 0, 9, 0, 0, 0, 77]);
        (packet[32], packet[33]) = (5 << 4, flags);
        packet
    }

    #[test]
    fn a_segment_of_a_connection_is_answered_where_its_sender_believes_it() {
        let reset = reset(&segment(ACK)).expect("an answer");
        assert_eq!(reset[12..20], [10, 0, 0, 2, 10, 0, 0, 1], "the other way round");
        assert_eq!(reset[20..24], [0, 80, 0x12, 0x34]);
        assert_eq!((u32_at(&reset, 24), reset[33]), (77, RST));
        assert_eq!(checksum(&reset[..20], 0), 0, "the header's checksum is right");
        let pseudo = sum_of(&reset[12..20]) + 6 + 20;
        assert_eq!(checksum(&reset[20..], pseudo), 0, "the segment's checksum is right");
    }

    #[test]
    fn a_first_segment_is_refused_with_what_it_sent_acknowledged() {
        let reset = reset(&segment(SYN)).expect("an answer");
        assert_eq!((u32_at(&reset, 28), reset[33]), (9 + 3 + 1, RST | ACK));
        assert!(opens_a_connection(&segment(SYN)) && !opens_a_connection(&segment(SYN | ACK)));
    }

    #[test]
    fn resets_and_foreign_packets_are_not_answered() {
        assert_eq!(reset(&segment(RST)), None);
        assert_eq!(reset(&segment(ACK)[..30]), None, "cut short");
        let mut udp = segment(ACK);
        udp[9] = 17;
        assert_eq!(reset(&udp), None);
        assert_eq!(reset(&[]), None);
    }
}
