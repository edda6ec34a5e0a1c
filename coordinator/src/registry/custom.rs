//! Custom resources: the kinds that the operator's manifests declare, and the rules of their objects.
//!
//! Kinds are compared by their whole description. A kind that is unchanged after a reload keeps the same value, so
//! that nothing is rebuilt for it. New descriptions are kept for the life of the process, up to a limit.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tracing::warn;
use yurt_apiextensions::definition::{self, Definition};
use yurt_apiextensions::structural::{self, Structural};
use yurt_apimachinery::kind::CustomKind;
use yurt_apimachinery::text::go_quote;
use yurt_apimachinery::{ResourceKind, meta};
use yurt_storage::kinds::Kinds;

use super::fields::carry;
use super::strategy::{Generation, Strategy};
use crate::config::{Config, Profile};
use crate::reloadable_files::{Contents, ReloadableFiles, each_document};

/// The manifest of NodePools; a manifest of the operator replaces it.
const NODE_POOLS: &str = include_str!("nodepools.yaml");
/// The kinds that files declare.
pub(crate) struct CustomKinds {
    files: ReloadableFiles,
    kinds_max: usize,
    /// Names of the pool-scope kinds.
    pool: Vec<String>,
    has_node_pools: bool,
    kept: Kinds,
}

/// One kind in all its versions.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    /// The kind in which its objects are stored.
    pub(crate) stored: &'static ResourceKind,
    /// Served versions, the preferred one first.
    pub(crate) served: Vec<ServedKind>,
}

/// One served version.
#[derive(Clone, Debug)]
pub(crate) struct ServedKind {
    pub(crate) kind: &'static ResourceKind,
    /// Its OpenAPI schema.
    pub(crate) schema: Option<Arc<Value>>,
    /// The schema in the form that is enforced.
    pub(crate) structural: Option<Arc<Structural>>,
}

// === impl CustomKinds ===

impl CustomKinds {
    /// Reads the files of `config`.
    ///
    /// # Errors
    /// One line: the flag, the file, the kind, the field, and the fault.
    pub(crate) fn open(config: &Config) -> Result<(Self, Vec<Declared>), String> {
        let (files, contents) = ReloadableFiles::open(config.custom_resources_path.clone())
            .map_err(|error| format!("--custom-resources-path: {error}"))?;
        let pool = config.pool_custom().to_vec();
        let kinds = Self {
            files,
            kinds_max: config.max_custom_resources,
            // In a pool they belong to the cloud.
            has_node_pools: config.profile == Profile::Standalone
                || pool.iter().any(|name| name == &node_pools().name()),
            pool,
            kept: Kinds::default(),
        };
        let declared = kinds.declared(&contents)?;
        Ok((kinds, declared))
    }

    /// Every kind declared so far.
    pub(crate) fn kinds(&self) -> &Kinds {
        &self.kept
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.files.is_reloadable()
    }

    /// Reads the files again; `None` when nothing has changed. Blocks for the reads.
    ///
    /// # Errors
    /// As [`CustomKinds::open`].
    pub(crate) fn changed(&self) -> Result<Option<Vec<Declared>>, String> {
        let contents = self
            .files
            .changed()
            .map_err(|error| format!("--custom-resources-path: {error}"))?;
        let declared = contents.map(|contents| self.declared(&contents)).transpose();
        declared.inspect_err(|_| self.forget())
    }

    /// Marks the last contents as rejected: the next read treats them as a change.
    pub(crate) fn forget(&self) {
        self.files.forget();
    }

    /// Stored kinds of the resources that are replicated from the cloud.
    pub(crate) fn pool_kinds(&self, declared: &[Declared]) -> Vec<&'static ResourceKind> {
        let is_pool = |kind: &&ResourceKind| self.pool.contains(&kind.group_resource().to_string());
        declared
            .iter()
            .map(|declared| declared.stored)
            .filter(is_pool)
            .collect()
    }

    fn declared(&self, contents: &[Contents]) -> Result<Vec<Declared>, String> {
        let in_flag = |why: String| format!("--custom-resources-path: {why}");
        let mut definitions = Vec::new();
        each_document(contents, |document| add(&mut definitions, document)).map_err(in_flag)?;
        definition::check_all(&definitions, self.kinds_max).map_err(in_flag)?;
        let node_pools = node_pools();
        let is_declared = |name: &str| definitions.iter().any(|definition| definition.name() == name);
        if self.has_node_pools && !is_declared(&node_pools.name()) {
            definitions.push(node_pools);
            definition::check_all(&definitions, usize::MAX).map_err(in_flag)?;
        }
        if let Some(missing) = self
            .pool
            .iter()
            .find(|name| !definitions.iter().any(|known| known.name() == **name))
        {
            return Err(format!(
                "--pool-scope-resources: {missing} is neither built in nor declared in --custom-resources-path"
            ));
        }
        definitions.iter().for_each(name_what_is_not_enforced);
        definitions.iter().map(|definition| self.keep(definition)).collect()
    }

    fn keep(&self, definition: &Definition) -> Result<Declared, String> {
        let served = definition.served.iter().map(|served| {
            Ok(ServedKind {
                kind: self.keep_kind(&served.kind)?,
                schema: served.schema.clone().map(Arc::new),
                structural: served.schema.as_ref().map(|schema| Arc::new(Structural::of(schema))),
            })
        });
        Ok(Declared {
            stored: self.keep_kind(&definition.stored)?,
            served: served.collect::<Result<_, String>>()?,
        })
    }

    fn keep_kind(&self, kind: &CustomKind) -> Result<&'static ResourceKind, String> {
        let kept = self.kept.keep(kind);
        kept.map_err(|error| format!("--custom-resources-path: {error}"))
    }
}

/// Adds a manifest, or all items of a list.
fn add(definitions: &mut Vec<Definition>, document: &Value) -> Result<(), String> {
    if document["kind"] == "List" {
        let items = document["items"].as_array().into_iter().flatten();
        return items.into_iter().try_for_each(|item| add(definitions, item));
    }
    if definition::is_manifest(document)? {
        definitions.push(definition::parse(document)?);
    }
    Ok(())
}

/// Logs schema rules that are not enforced, for the operator who wrote them.
fn name_what_is_not_enforced(definition: &Definition) {
    for served in &definition.served {
        let fields = served.schema.as_ref().map(structural::not_enforced).unwrap_or_default();
        if !fields.is_empty() {
            let (name, version) = (definition.name(), &served.kind.version);
            warn!(
                name,
                version,
                ?fields,
                "Custom resource has schema rules that are not enforced here"
            );
        }
    }
}

fn node_pools() -> Definition {
    let manifest: Value = serde_saphyr::from_str(NODE_POOLS).expect("the manifest of NodePools must be YAML");
    definition::parse(&manifest).expect("the manifest of NodePools must be valid")
}

/// Rules of custom resources whose status is a subresource.
pub(crate) struct WithStatus;

/// Rules of custom resources without a status subresource: the status is a field as any other.
pub(crate) struct WithoutStatus;

impl Declared {
    /// True if the stored version and all others that are served have the same schema.
    pub(crate) fn has_one_schema(&self) -> bool {
        let is_stored = |served: &ServedKind| served.kind.version == self.stored.version;
        self.served.iter().any(is_stored) && self.served.windows(2).all(|pair| pair[0].schema == pair[1].schema)
    }

    /// A kind that no file declares: the pool shares it, and the cloud is its authority.
    pub(crate) fn shared(kind: &'static ResourceKind) -> Self {
        Self {
            stored: kind,
            served: vec![ServedKind {
                kind,
                schema: None,
                structural: None,
            }],
        }
    }
}

impl Strategy for WithStatus {
    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
    }

    /// Of metadata only the managed fields change with a status.
    fn prepare_status(&self, old: &Value, new: &mut Value) {
        let managed = new["metadata"].get("managedFields").cloned();
        carry(old, new, "metadata");
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            match managed {
                Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
                None => drop(metadata.remove("managedFields")),
            }
        }
    }

    fn generation(&self) -> Generation {
        Generation::OfSpec
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        finalizer_warnings(object, old)
    }
}

impl Strategy for WithoutStatus {
    fn generation(&self) -> Generation {
        Generation::OfContent
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        finalizer_warnings(object, old)
    }
}

/// Warnings about new finalizers that name no domain.
fn finalizer_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let before: HashSet<&str> = old.map(meta::finalizers).into_iter().flatten().collect();
    let given = meta::finalizers(object).into_iter();
    let added: BTreeSet<&str> = given.filter(|name| !before.contains(name)).collect();
    let odd = added.into_iter().filter(|name| !meta::is_qualified_finalizer(name));
    odd.map(|name| {
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other \
             finalizer writers",
            go_quote(name)
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(plural: &str) -> String {
        format!(
            "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {plural}.example.com}}, \
             spec: {{group: example.com, scope: Cluster, names: {{plural: {plural}, kind: K{plural}}}, \
             versions: [{{name: v1, served: true, storage: true}}]}}}}\n"
        )
    }

    fn flags<'a>(path: &'a str, more: &[&'a str]) -> Config {
        let flags = ["yurt-coordinator", "--custom-resources-path", path];
        let Ok(config) = Config::parse(flags.iter().chain(more).copied()) else {
            panic!("flags")
        };
        config
    }

    #[test]
    fn number_of_kinds_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        for (count, is_taken) in [(1, true), (2, true), (3, false)] {
            let all: Vec<String> = (0..count).map(|n| manifest(&format!("w{n}"))).collect();
            std::fs::write(folder.path().join("all.yaml"), all.join("---\n")).unwrap();
            let opened = CustomKinds::open(&flags(path, &["--max-custom-resources", "2"]));
            assert_eq!(opened.is_ok(), is_taken, "{count}");
            if let Err(error) = opened {
                assert!(error.contains("at most 2 can be"), "{error}");
            }
        }
    }

    #[test]
    fn what_did_not_change_stays_the_same_value() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: String| std::fs::write(folder.path().join("w.yaml"), text).unwrap();
        write(manifest("w0"));
        let (kinds, first) = CustomKinds::open(&flags(folder.path().to_str().unwrap(), &[])).unwrap();
        assert!(kinds.changed().unwrap().is_none());
        write(manifest("w0") + "---\n" + &manifest("w1"));
        let second = kinds.changed().unwrap().unwrap();
        assert!(std::ptr::eq(first[0].stored, second[0].stored) && second.len() == 2);
        write("kind: [".to_owned());
        for _ in 0..2 {
            let error = kinds.changed().unwrap_err();
            assert!(error.contains("w.yaml"), "a mistake is named until it is gone: {error}");
        }
    }

    #[test]
    fn pool_scope_kinds_have_to_be_declared_and_nodepools_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let error = CustomKinds::open(&flags(path, &["--pool-scope-resources", "w0.example.com"]));
        assert!(error.is_err_and(|error| error.contains("w0.example.com is neither built in nor declared")));
        let names = |more: &[&str]| {
            let (_, declared) = CustomKinds::open(&flags(path, more)).unwrap();
            declared
                .iter()
                .map(|one| one.stored.group_resource().to_string())
                .collect::<Vec<_>>()
        };
        assert!(names(&[]).is_empty(), "in a pool NodePools are the cloud's");
        let node_pools = "nodepools.apps.openyurt.io";
        assert_eq!(names(&["--pool-scope-resources", node_pools]), [node_pools]);
        assert_eq!(names(&["--profile", "standalone"]), [node_pools]);
    }
}
