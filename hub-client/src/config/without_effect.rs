//! Flags of upstream's YurtHub that have no effect here. They are accepted, so that existing manifests work, and absent
//! from `--help`.

use clap::builder::ValueParser;
use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// Form of a flag's value.
#[derive(Clone, Copy)]
enum Form {
    /// Optional, `true` without one.
    Bool,
    /// Any text.
    Text,
}

/// The flags, in the order of their names: those of OpenYurt, and of the log library that it links.
const FLAGS: [(&str, Form); 29] = [
    ("access-server-through-hub", Form::Bool),
    ("add_dir_header", Form::Bool),
    ("alsologtostderr", Form::Bool),
    ("coordinator-storage-addr", Form::Text),
    ("coordinator-storage-prefix", Form::Text),
    ("daemonpodupdater-workers", Form::Text),
    ("enable-node-pool", Form::Bool),
    ("enable-pool-service-topology", Form::Bool),
    ("gc-frequency", Form::Text),
    ("heartbeat-failed-retry", Form::Text),
    ("heartbeat-healthy-threshold", Form::Text),
    ("heartbeat-interval-seconds", Form::Text),
    ("heartbeat-timeout-seconds", Form::Text),
    ("host-control-plane-address", Form::Text),
    ("kubelet-health-grace-period", Form::Text),
    ("log_backtrace_at", Form::Text),
    ("log_dir", Form::Text),
    ("log_file", Form::Text),
    ("log_file_max_size", Form::Text),
    ("logtostderr", Form::Bool),
    ("multiplexer-port", Form::Text),
    ("node-ip", Form::Text),
    ("one_output", Form::Bool),
    ("pool-scope-resources", Form::Text),
    ("profiling", Form::Bool),
    ("skip_headers", Form::Bool),
    ("skip_log_headers", Form::Bool),
    ("stderrthreshold", Form::Text),
    ("vmodule", Form::Text),
];

/// Names of the flags that the command line has.
#[derive(Clone, Debug)]
pub(super) struct WithoutEffect {
    pub(super) given: Vec<&'static str>,
}

// === impl WithoutEffect ===

impl Args for WithoutEffect {
    fn augment_args(command: Command) -> Command {
        let args = FLAGS.iter().map(|(name, form)| {
            let arg = Arg::new(*name).long(*name).hide(true).action(ArgAction::Set);
            let arg = arg.value_parser(ValueParser::string());
            match form {
                Form::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
                Form::Text => arg,
            }
        });
        command.args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for WithoutEffect {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let names = FLAGS.iter().map(|(name, _)| *name);
        Ok(Self {
            given: names.filter(|name| matches.contains_id(name)).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::{Config, Flags};

    fn check(args: &[&str]) -> Config {
        let line = ["yurthub"].iter().chain(args);
        let flags = Flags::try_parse_from(line).unwrap_or_else(|error| panic!("{error}"));
        flags.check().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Flags of OpenYurt 1.4.4 to 1.7.0 with their defaults, and with the values that it needs for a node that joins.
    const OPENYURT: [&str; 53] = [
        "--bind-address=127.0.0.1",
        "--serve-port=10267",
        "--bind-proxy-address=127.0.0.1",
        "--proxy-port=10261",
        "--proxy-secure-port=10268",
        "--namespace=kube-system",
        "--server-addr=https://10.0.0.1:6443",
        "--hub-cert-organizations=openyurt:tenant:shop",
        "--gc-frequency=120",
        "--node-name=n1",
        "--lb-mode=rr",
        "--heartbeat-failed-retry=3",
        "--heartbeat-healthy-threshold=2",
        "--heartbeat-timeout-seconds=2",
        "--heartbeat-interval-seconds=10",
        "--max-requests-in-flight=250",
        "--join-token=abcdef.0123456789abcdef",
        "--bootstrap-mode=token",
        "--root-dir=/var/lib/yurthub",
        "--profiling=true",
        "--enable-dummy-if=true",
        "--enable-iptables=false",
        "--dummy-if-ip=169.254.2.1",
        "--dummy-if-name=yurthub-dummy0",
        "--disk-cache-path=/etc/kubernetes/cache/",
        "--access-server-through-hub=true",
        "--enable-resource-filter=true",
        "--disabled-resource-filters=",
        "--nodepool-name=shore",
        "--working-mode=edge",
        "--kubelet-health-grace-period=40s",
        "--enable-node-pool=true",
        "--min-request-timeout=1800s",
        "--discovery-token-ca-cert-hash=",
        "--discovery-token-unsafe-skip-ca-verification=true",
        "--enable-coordinator=true",
        "--coordinator-server-addr=https://yurt-coordinator-apiserver:443",
        "--coordinator-storage-prefix=/registry",
        "--coordinator-storage-addr=https://yurt-coordinator-etcd:2379",
        "--leader-elect=true",
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=2s",
        "--leader-elect-resource-lock=leases",
        "--leader-elect-resource-name=yurthub",
        "--leader-elect-resource-namespace=kube-system",
        "--v=2",
        "--logtostderr",
        "--enable-pool-service-topology",
        "--host-control-plane-address=",
        "--multiplexer-port=10269",
        "--node-ip=192.0.2.7",
        "--pool-scope-resources=/v1/services,discovery.k8s.io/v1/endpointslices",
    ];

    #[test]
    fn every_flag_of_openyurt_starts_the_hub_and_those_without_effect_are_named() {
        let config = check(&OPENYURT);
        assert_eq!((config.node.as_str(), config.verbosity), ("n1", 2));
        let without_effect = [
            "access-server-through-hub",
            "coordinator-storage-addr",
            "coordinator-storage-prefix",
            "enable-node-pool",
            "enable-pool-service-topology",
            "gc-frequency",
            "heartbeat-failed-retry",
            "heartbeat-healthy-threshold",
            "heartbeat-interval-seconds",
            "heartbeat-timeout-seconds",
            "host-control-plane-address",
            "kubelet-health-grace-period",
            "logtostderr",
            "multiplexer-port",
            "node-ip",
            "pool-scope-resources",
            "profiling",
        ];
        assert_eq!(config.without_effect, without_effect);
        assert_eq!(
            check(&["--node-name=n1", "--server-addr=https://10.0.0.1:6443"]).without_effect,
            [""; 0]
        );
        let help = Flags::command().render_long_help().to_string();
        assert!(without_effect.iter().all(|flag| !help.contains(flag)), "{help}");
    }

    #[test]
    fn empty_value_of_a_flag_of_openyurt_counts_as_not_given() {
        let empty = [
            "--bootstrap-file=",
            "--coordinator-server-addr=",
            "--disabled-resource-filters=",
            "--discovery-token-ca-cert-hash=",
            "--dummy-if-ip=",
            "--hub-cert-organizations=",
            "--join-token=",
            "--nodepool-name=",
        ];
        for given in [&[][..], &["--enable-coordinator", "--nodepool-name=shore"]] {
            let base = ["--node-name=n1", "--server-addr=https://10.0.0.1:6443"];
            let without = [&base, given].concat();
            let with = [&base, &empty[..], given].concat();
            assert_eq!(
                format!("{:?}", check(&with)),
                format!("{:?}", check(&without)),
                "{given:?}"
            );
        }
        let without_effect = check(&[
            "--node-name=n1",
            "--server-addr=https://10.0.0.1:6443",
            "--coordinator-storage-addr=",
            "--coordinator-storage-prefix=",
            "--host-control-plane-address=",
            "--node-ip=",
            "--pool-scope-resources=",
        ]);
        assert_eq!(without_effect.without_effect.len(), 5);
    }

    #[test]
    fn last_value_of_a_repeated_flag_counts_and_lists_collect_theirs() {
        let config = check(&[
            "--node-name=n1",
            "--server-addr=https://10.0.0.1:6443",
            "--proxy-port=1",
            "--proxy-port=2",
            "--enable-dummy-if",
            "--enable-dummy-if=false",
            "--v=1",
            "--v=4",
            "--gc-frequency=1",
            "--gc-frequency=2",
            "--node-identity-components=a",
            "--node-identity-components=b",
        ]);
        assert_eq!((config.proxy_addr.port(), config.verbosity), (2, 4));
        assert!(config.network.is_none());
        assert_eq!(config.identity.components, ["a", "b"]);
    }
}
