//! `yurthub filters list` and `yurthub filters explain`: the bindings of the data filters, and the view of an object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{GroupResource, Object, ObjectKey, ResourceKind, Verb};
use yurt_codec::yaml;

use crate::client_name::ACCOUNT_PREFIX;
use crate::config::{FilterFlags, FilterSettings, WorkingMode};
use crate::filter::binding::entry::Verbs;
use crate::filter::binding::{Binding, Row, Table};
use crate::filter::explain::explain;
use crate::filter::{FILTERS, FilterContext, HubAddress, LocalPods, Members, NodePool, PodTrust, Pool, ServiceLookup};
use crate::hub_config;

/// Maximum size of a file that is read, bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Commands about the data filters.
#[derive(Clone, Debug, Subcommand)]
pub enum FiltersCommand {
    /// Print the filters in call order, the resources that they handle, and the components that they are bound to.
    List(ListFlags),
    /// Print which filters bind to a request, what each does to an object, and why.
    Explain(Box<ExplainFlags>),
}

/// Flags of `filters list`.
#[derive(Clone, Debug, Args)]
pub struct ListFlags {
    /// ConfigMap yurt-hub-cfg as YAML or JSON [default: no ConfigMap].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Working mode of the hub: edge, or cloud, in which some filters do not run.
    #[arg(long, default_value = "edge", value_name = "MODE")]
    working_mode: String,
    #[command(flatten)]
    filters: FilterFlags,
}

/// Flags of `filters explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainFlags {
    /// Component that reads: the first part of its User-Agent; or a service account that --config names, as
    /// system:serviceaccount:NAMESPACE:NAME.
    #[arg(long)]
    component: String,
    /// Resource that it reads, such as endpointslices or endpointslices.discovery.k8s.io.
    #[arg(long)]
    resource: String,
    /// Verb of the request.
    #[arg(long, value_enum, default_value = "list")]
    verb: ReadVerb,
    /// Object as YAML or JSON, for example from kubectl get -o yaml.
    #[arg(long, value_name = "FILE")]
    object: PathBuf,
    /// Services that the filters look up, as YAML or JSON: one Service or a list.
    #[arg(long, value_name = "FILE")]
    service: Option<PathBuf>,
    /// Name of the node.
    #[arg(long, default_value = "node")]
    node: String,
    /// Pool of the node [default: none].
    #[arg(long)]
    pool: Option<String>,
    /// Nodes of the pool, separated by commas [default: not known].
    #[arg(long, value_delimiter = ',')]
    members: Option<Vec<String>>,
    /// spec.hostNetwork of the NodePool [default: not known].
    #[arg(long)]
    host_network: Option<bool>,
    /// Address of the hub for pods.
    #[arg(long, default_value = "169.254.2.1")]
    hub_host: IpAddr,
    /// HTTPS port of the hub.
    #[arg(long, default_value_t = 10268)]
    hub_port: u16,
    #[command(flatten)]
    list: ListFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReadVerb {
    Get,
    List,
    Watch,
}

struct Services(BTreeMap<ObjectKey, Object>);

// === impl FiltersCommand ===

impl FiltersCommand {
    /// Runs the command. Returns the text to print.
    ///
    /// # Errors
    /// One line that names the flag or the file.
    pub fn run(&self) -> Result<String, String> {
        match self {
            FiltersCommand::List(flags) => Ok(listed(&flags.table()?.0)),
            FiltersCommand::Explain(flags) => flags.run(),
        }
    }
}

// === impl ListFlags ===

impl ListFlags {
    fn table(&self) -> Result<(Table, FilterSettings), String> {
        let settings = WorkingMode::parse(&self.working_mode, false)
            .and_then(|mode| self.filters.check(mode))
            .map_err(|error| error.to_string())?;
        let table = Table::new(&FILTERS, &settings.switches);
        let table = match &self.config {
            None => table,
            Some(path) => {
                let config_map = read(path)?;
                let data = hub_config::data_of(&config_map).map_err(|error| format!("{}: {error}", path.display()))?;
                table.with(&data)
            }
        };
        Ok((table, settings))
    }
}

// === impl ExplainFlags ===

impl ExplainFlags {
    fn run(&self) -> Result<String, String> {
        let (table, settings) = self.list.table()?;
        let kind = kind_of(&self.resource)?;
        let object = object_of(kind, read(&self.object)?)
            .map_err(|error| format!("--object: {}: {error}", self.object.display()))?;
        let services = Services::read(self.service.as_deref())?;
        let names: Option<BTreeSet<String>> = self.members.as_ref().map(|names| names.iter().cloned().collect());
        let pool = self.pool.as_deref().map_or(Pool::NoPool, |name| {
            Pool::Named(NodePool {
                name,
                members: names.as_ref().map_or(Members::Unknown, Members::Names),
                host_network: self.host_network,
            })
        });
        let context = FilterContext {
            hub: HubAddress {
                host: self.hub_host,
                secure_port: self.hub_port,
            },
            trust: PodTrust::Given,
            node_name: &self.node,
            pool,
            services: &services,
            local_pods: &LocalPods::new(),
            options: settings.options,
        };
        let verb = match self.verb {
            ReadVerb::Get => Verb::Get,
            ReadVerb::List => Verb::List,
            ReadVerb::Watch => Verb::Watch,
        };
        let component = self.component.to_lowercase();
        if component.starts_with(ACCOUNT_PREFIX) && !table.accounts().contains(&component) {
            return Err(format!(
                "--component: no entry of --config binds a filter to {component:?}: write the component of its User-Agent"
            ));
        }
        let explanation = explain(&table, &component, verb, (kind, &object), &context);
        Ok(format!("{explanation}{}", faults(&table)))
    }
}

/// Prints the table.
fn listed(table: &Table) -> String {
    let mut text = String::new();
    for (number, row) in table.rows().iter().enumerate() {
        let resources: Vec<String> = row.registration.resources.iter().map(name).collect();
        let off = row.off.map_or(String::new(), |flag| format!(", does not run: {flag}"));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}. {} ({}){off}",
            number + 1,
            row.registration.filter.name(),
            resources.join(", ")
        );
        for (component, binding) in &row.bound {
            let _ = writeln!(text, "     {component}: {}{}", binding.origin, exactly(row, binding));
        }
    }
    text + &faults(table)
}

/// Resources and verbs of a binding, if they are not all.
fn exactly(row: &Row, binding: &Binding) -> String {
    if binding.verbs.iter().all(|verbs| *verbs == Verbs::ALL) {
        return String::new();
    }
    let bound = row.registration.resources.iter().zip(&binding.verbs);
    let bound = bound.filter(|(_, verbs)| **verbs != Verbs::default());
    let words: Vec<String> = bound
        .map(|(resource, verbs)| format!("{}#{}", name(resource), verbs.names().join(";")))
        .collect();
    format!(", {}", words.join(", "))
}

fn faults(table: &Table) -> String {
    let lines = table.faults().iter().map(|fault| {
        let (key, entry, reason) = (&fault.key, &fault.entry, &fault.reason);
        format!("Not applied: {key:?}: {entry:?}: {reason}\n")
    });
    lines.collect()
}

fn name((group, plural): &(&str, &str)) -> String {
    GroupResource::new(*group, *plural).to_string()
}

/// Finds a kind that a filter handles by its plural, with or without its group.
fn kind_of(resource: &str) -> Result<&'static ResourceKind, String> {
    let handled: BTreeSet<_> = FILTERS.iter().flat_map(|one| one.resources).collect();
    let is_named = |one: &&&(&str, &str)| one.1 == resource || name(one) == resource;
    let found = handled.iter().find(is_named);
    found
        .and_then(|(group, plural)| find_kind(group, plural))
        .ok_or_else(|| {
            let names: Vec<String> = handled.iter().map(|one| name(one)).collect();
            format!(
                "--resource: no filter handles {resource:?}, so clients see it unchanged; filters handle {}",
                names.join(", ")
            )
        })
}

/// Returns the object of a document, which may omit its apiVersion and its kind.
fn object_of(kind: &ResourceKind, document: Value) -> Result<Object, String> {
    for (field, expected) in [("apiVersion", &*kind.api_version()), ("kind", &kind.kind)] {
        if let Some(given) = document.get(field).filter(|given| **given != *expected) {
            return Err(format!("its {field} is {given}; the filters handle {expected:?}"));
        }
    }
    Object::from_value(document, kind).map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<Value, String> {
    let failed = |error: String| format!("{}: {error}", path.display());
    let size = std::fs::metadata(path)
        .map_err(|error| failed(error.to_string()))?
        .len();
    if size > FILE_BYTES_MAX {
        return Err(failed(format!("has {size} bytes; at most {FILE_BYTES_MAX} are read")));
    }
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    yaml::parse(&text).map_err(|error| failed(error.to_string()))
}

// === impl Services ===

impl Services {
    fn read(path: Option<&Path>) -> Result<Self, String> {
        let kind = find_kind("", "services").ok_or("services are not a built-in resource")?;
        let Some(path) = path else {
            return Ok(Self(BTreeMap::new()));
        };
        let document = read(path)?;
        let items = match document.get("items").and_then(Value::as_array) {
            Some(items) => items.clone(),
            None => vec![document],
        };
        let objects = items.into_iter().map(|item| {
            let object = Object::from_value(item, kind).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok((object.key().clone(), object))
        });
        Ok(Self(objects.collect::<Result<_, String>>()?))
    }
}

impl ServiceLookup for Services {
    fn service(&self, key: &ObjectKey) -> Option<Object> {
        self.0.get(key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use yurt_test_support::TestDir;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: FiltersCommand,
    }

    fn run(args: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from([&["filters"], args].concat()).map_err(|error| error.to_string())?;
        line.command.run()
    }

    #[test]
    fn list_shows_the_bindings_of_a_config_map_and_what_it_does_not_apply() {
        let folder = TestDir::new();
        let path = folder.write(
            "config.yaml",
            "kind: ConfigMap\ndata:\n  masterservice: agent, -kubelet\n  filter_servicetopology: cilium/endpoints#list, '*'\n",
        );
        let flag = format!("--config={}", path.display());
        let text = run(&["list", &flag]).unwrap();
        for expected in [
            "masterservice (services)\n     agent: ConfigMap\n",
            "     cilium: ConfigMap, endpoints#get;list\n     coredns: default\n",
            "Not applied: \"filter_servicetopology\": \"'*'\"",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        let text = run(&["list", "--disabled-resource-filters=masterservice"]).unwrap();
        let off = "masterservice (services), does not run: --disabled-resource-filters";
        assert!(text.contains(off), "{text}");
        assert!(run(&["list", "--config=/none"]).is_err_and(|why| why.starts_with("/none: ")));
    }

    #[test]
    fn explain_reads_object_and_inputs_from_files() {
        let folder = TestDir::new();
        let object = folder.write(
            "slice.yaml",
            "metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}\n\
             endpoints: [{nodeName: e1}, {nodeName: w1}]\n",
        );
        let services = folder.write(
            "services.json",
            r#"{"items":[{"metadata":{"namespace":"shop","name":"web","annotations":{"openyurt.io/topologyKeys":"openyurt.io/nodepool"}}}]}"#,
        );
        let (object, services) = (
            format!("--object={}", object.display()),
            format!("--service={}", services.display()),
        );
        let base = [
            "explain",
            "--component=Kube-Proxy",
            "--resource=endpointslices",
            &object,
        ];
        let more = ["--node=e1", "--pool=east", "--members=e1,e2", &services];
        let text = run(&[&base[..], &more].concat()).unwrap();
        assert!(text.contains("- /endpoints/1: {\"nodeName\":\"w1\"}"), "{text}");
        let text = run(&base).unwrap();
        assert!(text.contains("because Service shop/web is unknown"), "{text}");
        assert!(text.ends_with("Result: the client does not see the object\n"), "{text}");
        let account = "--component=system:serviceaccount:shop:web";
        let of_account = ["explain", account, "--resource=endpointslices", &object];
        assert!(
            run(&of_account).is_err_and(|why| why.starts_with("--component: ")),
            "it has no entry"
        );
        let config = folder.write(
            "config.yaml",
            "kind: ConfigMap\ndata:\n  servicetopology: system:serviceaccount:shop:web/endpointslices#list\n",
        );
        let config = format!("--config={}", config.display());
        let text = run(&[&of_account[..], &[config.as_str()]].concat()).unwrap();
        assert!(text.contains("by system:serviceaccount:shop:web\n"), "{text}");
        assert!(
            text.contains("1. servicetopology (bound by ConfigMap): dropped"),
            "{text}"
        );
        let beta = folder.write(
            "beta.yaml",
            "apiVersion: discovery.k8s.io/v1beta1\nmetadata: {namespace: shop, name: web-1}\n",
        );
        let beta = format!("--object={}", beta.display());
        let of_beta = ["explain", "--component=kube-proxy", "--resource=endpointslices", &beta];
        let refused = run(&of_beta).unwrap_err();
        assert!(
            refused.starts_with("--object: ") && refused.contains("\"discovery.k8s.io/v1beta1\""),
            "{refused}"
        );
        let wrong = ["explain", "--component=a", "--resource=nosuch", &object];
        assert!(run(&wrong).is_err_and(|why| why.contains("--resource")));
    }

    #[test]
    fn explain_refuses_a_resource_of_no_filter_and_names_those_of_filters() {
        let folder = TestDir::new();
        let object = folder.write("object.yaml", "metadata: {namespace: shop, name: web}\n");
        let object = format!("--object={}", object.display());
        for resource in ["secrets", "deployments.apps", "nosuch"] {
            let flag = format!("--resource={resource}");
            let why = run(&["explain", "--component=kubelet", &flag, &object]).unwrap_err();
            for part in ["--resource: ", resource, "endpointslices.discovery.k8s.io", "services"] {
                assert!(why.contains(part), "{part} in {why}");
            }
        }
    }

    #[test]
    fn explain_refuses_an_object_of_another_kind_than_the_resource() {
        let folder = TestDir::new();
        let object = folder.write(
            "pod.yaml",
            "{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web}}",
        );
        let object = format!("--object={}", object.display());
        let why = run(&["explain", "--component=kubelet", "--resource=services", &object]).unwrap_err();
        assert!(why.starts_with("--object: "), "{why}");
        assert!(why.contains("\"Pod\"") && why.contains("\"Service\""), "{why}");
    }
}
