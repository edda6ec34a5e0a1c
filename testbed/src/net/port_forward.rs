//! A way into a namespace for the test itself: a loopback port outside that leads to the same port inside.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpSocket};
use yurt_runtime::TaskGroup;

use super::namespace::Namespace;

/// Opens it. Its callers come from the loopback interface of `namespace`.
pub fn open(tasks: &TaskGroup, namespace: &Namespace, port: u16) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = std::net::TcpListener::bind(address).context("cannot forward a port")?;
    listener.set_nonblocking(true).context("cannot forward a port")?;
    let listener = TcpListener::from_std(listener).context("cannot forward a port")?;
    let (group, token, namespace) = (tasks.clone(), tasks.token(), namespace.clone());
    tasks.spawn("port forward", async move {
        while let Some(accepted) = token.run_until_cancelled(listener.accept()).await {
            let Ok((mut out_here, _)) = accepted else { continue };
            let (namespace, token) = (namespace.clone(), token.clone());
            let pass = async move {
                let socket = namespace.inside(|| Ok(TcpSocket::new_v4()?));
                // No program listens there: the caller's connection is closed.
                let Ok(socket) = socket else { return };
                let Ok(mut in_there) = socket.connect(address).await else {
                    return;
                };
                let _ = (out_here.set_nodelay(true), in_there.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut out_here, &mut in_there).await;
            };
            group.spawn("port forward connection", async move {
                let _ = token.run_until_cancelled(pass).await;
            });
        }
    });
    Ok(())
}
