//! Dummy interface: an address that is the same on every node, at which pods reach their own node's hub.
//!
//! Created with iproute2, as an operator would. Some kernels lack the link type `dummy`: the hub then logs that and
//! serves on its other addresses.

use std::net::IpAddr;
use std::process::Command;

/// Ensures that interface `name` exists, is up and has `address`. Blocks for a few short commands.
///
/// # Errors
/// The failed command and the alternative, for the log.
pub fn ensure(name: &str, address: IpAddr) -> Result<(), String> {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    let made = if ip(&["link", "show", "dev", name]).is_ok() {
        Ok(())
    } else {
        ip(&["link", "add", "name", name, "type", "dummy"])
    };
    made.and_then(|()| ip(&["addr", "replace", &format!("{address}/{prefix}"), "dev", name]))
        .and_then(|()| ip(&["link", "set", "dev", name, "up"]))
        .map_err(|why| {
            format!(
                "no dummy interface {name} with {address} ({why}): start with --enable-dummy-if=false and an address of \
                 an existing interface in --bind-proxy-address if pods shall reach the hub"
            )
        })
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "ip {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}
