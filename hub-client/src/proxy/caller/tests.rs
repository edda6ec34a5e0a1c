//! Tests of callers, for every kind of credential.

use std::sync::Arc;

use http::header::HOST;
use yurt_runtime::tls::PeerIdentity;

use super::*;
use crate::config::Proof;

const TOKEN: &str = "the-kubelets-token-of-this-node";

fn peer(from: &str) -> Peer {
    let (addr, local_addr) = (
        from.parse().expect("address"),
        "127.0.0.1:10261".parse().expect("address"),
    );
    Peer {
        addr,
        local_addr,
        identity: None,
        is_refused: false,
        tls: false,
        uid: Some(0),
        ends: tokio_util::sync::CancellationToken::default(),
    }
}

fn headers(agent: &str, authorization: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, agent.parse().expect("header"));
    headers.insert(HOST, "127.0.0.1:10261".parse().expect("header"));
    if !authorization.is_empty() {
        headers.insert(AUTHORIZATION, authorization.parse().expect("header"));
    }
    headers
}

fn identify(agent: &str, authorization: &str, peer: &Peer) -> Result<Caller, Status> {
    identify_with(settings(), &headers(agent, authorization), "/", peer)
}

fn settings() -> NodeIdentity {
    NodeIdentity {
        components: vec!["kubelet".into(), "kube-proxy".into()],
        uids: Some(vec![0]),
        proof: Proof::Socket,
        hosts: vec!["edge-1".into(), "169.254.2.1".into()],
    }
}

fn identify_with(settings: NodeIdentity, headers: &HeaderMap, uri: &str, peer: &Peer) -> Result<Caller, Status> {
    let token = NodeToken::new(TOKEN).expect("token");
    Callers::new("edge-1", settings, token).identify(headers, &uri.parse().expect("uri"), peer)
}

/// Checks for the node; the error is 401 or 421.
fn is_node(settings: NodeIdentity, headers: &HeaderMap, uri: &str, peer: &Peer) -> Result<(), u16> {
    let caller = identify_with(settings, headers, uri, peer).map_err(|status| status.code())?;
    assert_eq!(caller.credential, Credential::Node);
    Ok(())
}

#[test]
fn only_configured_uids_act_as_the_node() {
    let of = |uid| Peer {
        uid,
        ..peer("127.0.0.1:5000")
    };
    let any = NodeIdentity {
        uids: None,
        ..settings()
    };
    let more = NodeIdentity {
        uids: Some(vec![0, 7]),
        ..settings()
    };
    let kubelet = headers("kubelet/v1", "");
    for (settings, uid, expected) in [
        (settings(), Some(0), Ok(())),
        (settings(), Some(7), Err(401)),
        (settings(), None, Err(401)),
        (more.clone(), Some(7), Ok(())),
        (more, Some(8), Err(401)),
        (any.clone(), Some(8), Ok(())),
        (any, None, Ok(())),
    ] {
        assert_eq!(is_node(settings, &kubelet, "/", &of(uid)), expected, "{uid:?}");
    }
    let refused = identify("kubelet/v1", "", &of(Some(7))).expect_err("not root");
    assert!(refused.message().contains("--node-identity-uids") && refused.message().contains("uid 7"));
    let stranger = identify("curl/8", "", &of(Some(7))).expect_err("no component");
    assert_eq!(stranger.message(), "Unauthorized", "strangers learn nothing");
}

#[test]
fn kubelets_token_is_the_nodes_or_nobodys() {
    let strict = NodeIdentity {
        proof: Proof::Token,
        ..settings()
    };
    let (own, here) = (format!("Bearer {TOKEN}"), peer("127.0.0.1:5000"));
    let bring = |authorization: &str| headers("kubelet/v1", authorization);
    assert_eq!(is_node(strict.clone(), &bring(""), "/", &here), Err(401));
    assert_eq!(is_node(strict.clone(), &bring(&own), "/", &here), Ok(()));
    assert_eq!(
        is_node(settings(), &bring(&own), "/", &here),
        Ok(()),
        "named before it is demanded"
    );
    let other = identify_with(strict.clone(), &bring("Bearer other"), "/", &here).expect("a bearer like any other");
    assert_eq!(other.credential, Credential::Token("other".into()));
    // The right token from the wrong place is not passed on as another caller's.
    let nobody = Peer {
        uid: Some(7),
        ..here.clone()
    };
    for (agent, peer) in [
        ("kubelet/v1", &peer("10.1.2.3:5000")),
        ("kubelet/v1", &nobody),
        ("curl/8", &here),
    ] {
        let refused = is_node(strict.clone(), &headers(agent, &own), "/", peer);
        assert_eq!(refused, Err(401), "{agent} {peer:?}");
    }
    let mut two = bring("Bearer other");
    two.append(AUTHORIZATION, own.parse().expect("header"));
    assert_eq!(
        is_node(settings(), &two, "/", &here),
        Err(401),
        "which of them is read behind us?"
    );
}

#[test]
fn node_is_asked_for_by_a_name_of_its_own() {
    let at = |hosts: &[&str], uri: &str| {
        let mut headers = headers("kubelet/v1", "");
        headers.remove(HOST);
        for host in hosts {
            headers.append(HOST, host.parse().expect("header"));
        }
        let here = Peer {
            local_addr: "10.0.0.7:10261".parse().expect("address"),
            ..peer("10.0.0.7:5000")
        };
        is_node(settings(), &headers, uri, &here)
    };
    for own in [
        "127.0.0.1",
        "127.8.8.8:80",
        "[::1]:10261",
        "[::ffff:127.0.0.1]",
        "localhost:10261",
        "LocalHost.",
        "Edge-1",
        "169.254.2.1:10261",
        "10.0.0.7",
    ] {
        assert_eq!(at(&[own], "/api"), Ok(()), "{own}");
    }
    for other in [
        "",
        "rebound.example",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example",
        "10.0.0.8",
        "edge-1.example",
        "edge-1@rebound.example",
        "rebound.example@127.0.0.1",
        "127.0.0.1/x",
        "[::2]",
    ] {
        assert_eq!(at(&[other], "/api"), Err(421), "{other}");
    }
    assert_eq!(at(&[], "/api"), Err(421), "no host at all");
    assert_eq!(at(&["127.0.0.1", "rebound.example"], "/api"), Err(421), "one of two");
    assert_eq!(at(&["127.0.0.1"], "http://rebound.example/api"), Err(421));
    assert_eq!(at(&[], "http://127.0.0.1:10261/api"), Ok(()), "as HTTP/2 names it");
}

#[test]
fn configured_component_on_loopback_is_the_node() {
    let caller = identify("Kubelet/v1.36 (linux/amd64)", "", &peer("127.0.0.1:5000")).expect("identified");
    assert_eq!(
        (caller.component.as_str(), caller.credential),
        ("kubelet", Credential::Node)
    );
}

#[test]
fn stranger_without_credentials_is_refused() {
    assert!(identify("curl/8", "", &peer("127.0.0.1:5000")).is_err());
    assert!(
        identify("kubelet/v1", "", &peer("10.1.2.3:5000")).is_err(),
        "a pod may call itself kubelet"
    );
    assert!(identify("../kubelet", "", &peer("127.0.0.1:5000")).is_err());
}

#[test]
fn own_token_wins_over_the_nodes_identity() {
    let caller = identify("kubelet/v1", "bearer abc", &peer("127.0.0.1:5000")).expect("identified");
    assert_eq!(caller.credential, Credential::Token("abc".into()));
    assert!(!caller.is_node_component("kubelet"));
}

#[test]
fn token_is_one_word() {
    // kube-apiserver reads the first word: each of these would be another caller here, and the same one there.
    for header in ["Bearer abc 1", "Bearer abc\t1", &format!("Bearer {TOKEN} x")] {
        let refused = identify("pod/v1", header, &peer("10.1.0.1:5000")).expect_err("two words");
        assert_eq!(refused.code(), 401, "{header}");
    }
}

#[test]
fn token_of_any_size_is_not_taken() {
    let bring = |bytes: usize| format!("Bearer {}", "a".repeat(bytes));
    let here = peer("10.1.2.3:5000");
    assert!(identify("pod/v1", &bring(TOKEN_MAX), &here).is_ok());
    let refused = identify("pod/v1", &bring(TOKEN_MAX + 1), &here).expect_err("too long");
    assert_eq!(refused.code(), 401);
    assert!(refused.message().contains("16384 bytes"));
}

/// Conformance: 6.01
#[test]
fn certificate_that_is_not_good_is_nobodys_and_a_token_beside_it_counts() {
    let peer = Peer {
        is_refused: true,
        tls: true,
        ..peer("127.0.0.1:5000")
    };
    let refused = identify("kubelet/v1", "", &peer).expect_err("not even the node");
    assert_eq!(refused.code(), 401);
    let caller = identify("kubelet/v1", "Bearer abc", &peer).expect("identified");
    assert_eq!(caller.credential, Credential::Token("abc".into()));
}

/// A peer with a good client certificate.
fn with_certificate(from: &str, user: &str, group: &str) -> Peer {
    let identity = PeerIdentity {
        common_name: user.into(),
        organizations: vec![group.into()],
        ..PeerIdentity::default()
    };
    Peer {
        identity: Some(Arc::new(identity)),
        tls: true,
        ..peer(from)
    }
}

#[test]
fn certificate_of_the_own_node_is_the_node_and_proves_as_much_as_the_token() {
    let strict = NodeIdentity {
        proof: Proof::Token,
        ..settings()
    };
    let own = with_certificate("127.0.0.1:5000", "system:node:edge-1", "system:nodes");
    for authorization in ["", "Bearer other", &format!("Bearer {TOKEN}")] {
        let kubelet = headers("kubelet/v1", authorization);
        assert_eq!(is_node(strict.clone(), &kubelet, "/", &own), Ok(()), "{authorization}");
    }
}

#[test]
fn certificate_that_fails_a_rule_of_the_node_is_a_certificate_as_any_other() {
    const HERE: &str = "127.0.0.1:5000";
    let (user, group) = ("system:node:edge-1", "system:nodes");
    let uid_7 = Peer {
        uid: Some(7),
        ..with_certificate(HERE, user, group)
    };
    let (kubelet, mut elsewhere) = (headers("kubelet/v1", ""), headers("kubelet/v1", ""));
    elsewhere.insert(HOST, "rebound.example".parse().expect("header"));
    for (what, headers, peer) in [
        (
            "another node",
            &kubelet,
            with_certificate(HERE, "system:node:edge-2", group),
        ),
        ("another group", &kubelet, with_certificate(HERE, user, "dev")),
        (
            "no component",
            &headers("curl/8", ""),
            with_certificate(HERE, user, group),
        ),
        ("another uid", &kubelet, uid_7),
        (
            "a remote caller",
            &kubelet,
            with_certificate("10.1.2.3:5000", user, group),
        ),
        ("another host", &elsewhere, with_certificate(HERE, user, group)),
    ] {
        let caller = identify_with(settings(), headers, "/", &peer).expect("identified");
        assert!(matches!(caller.credential, Credential::Certificate { .. }), "{what}");
    }
}

#[test]
fn certificate_is_the_caller() {
    let peer = with_certificate("10.1.2.3:5000", "jane", "dev");
    let caller = identify("kubectl/v1", "", &peer).expect("identified");
    assert_eq!(
        caller.credential,
        Credential::Certificate {
            user: "jane".into(),
            groups: vec!["dev".into()]
        }
    );
}

#[test]
fn names_that_no_component_has_are_the_name_of_none() {
    let of = |agent: &str| component(&headers(agent, ""));
    assert_eq!(of("Kubelet/v1.36.3 (linux/amd64)"), "kubelet");
    let long = "a".repeat(1000);
    for agent in [
        "",
        "/v1",
        "../../etc/passwd",
        "kube proxy/v1",
        "kubelet\\..",
        "a,b",
        "a=b",
        &long,
    ] {
        assert_eq!(of(agent), "", "{agent}");
    }
}

#[test]
fn process_of_this_machine_is_one_origin_at_every_address() {
    let of = |from: &str, uid| {
        let mut peer = Peer { uid, ..peer(from) };
        // An address of this machine is connected to at itself.
        if uid.is_some() {
            peer.local_addr.set_ip(peer.addr.ip());
        }
        identify("pod/v1", "Bearer t", &peer).unwrap().origin
    };
    let local = of("127.0.0.1:5000", Some(1000));
    for from in [
        "127.0.0.2:5000",
        "[::ffff:127.0.0.3]:5000",
        "[::1]:5000",
        "192.0.2.7:5000",
    ] {
        assert_eq!(of(from, Some(1000)), local, "{from}");
    }
    assert_eq!(of("127.0.0.2:5000", None), of("127.0.0.1:5000", None));
    assert_ne!(of("127.0.0.1:5000", Some(1001)), local);
    assert_ne!(of("10.1.0.2:5000", None), of("10.1.0.3:5000", None));
}
