//! Gzip streams of lists: their length, and the parts that are compressed again. Runs in a process of its own, because
//! the cache has one bound per process.

use bytes::Bytes;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_codec::negotiation::{Format, Negotiated};

/// Text that is the same on every machine, with the repetition of real objects: ids differ.
mod corpus {
    fn noise(seed: u64) -> u64 {
        let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }

    fn uid(seed: u64) -> String {
        let (a, b) = (noise(seed), noise(seed ^ 0x5555));
        format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            a >> 32,
            a >> 16 & 0xffff,
            a & 0xfff,
            b >> 52,
            b & 0xffff_ffff_ffff
        )
    }

    fn meta(name: &str, seed: u64) -> String {
        let (uid, rv) = (uid(seed), 1_000 + seed);
        format!(
            r#""metadata":{{"name":"{name}","namespace":"shop","uid":"{uid}","resourceVersion":"{rv}","creationTimestamp":"2026-01-01T00:00:00Z""#
        )
    }

    /// A slice of 100 endpoints; some 23 KB.
    pub(super) fn slice(number: u64) -> String {
        let endpoint = |n: u64| {
            let (seed, host) = (number * 1_000 + n, noise(number * 77 + n));
            format!(
                r#"{{"addresses":["10.{}.{}.{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"edge-node-{}","targetRef":{{"kind":"Pod","namespace":"shop","name":"web-{number}-7c5ddbdf54-{:05x}","uid":"{}"}},"zone":"zone-a"}}"#,
                host % 256,
                host >> 8 & 255,
                host >> 16 & 255,
                host >> 24 & 1023,
                noise(seed) >> 44,
                uid(seed)
            )
        };
        let endpoints: Vec<String> = (0..100).map(endpoint).collect();
        format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",{},"labels":{{"kubernetes.io/service-name":"web-{number}"}}}},"addressType":"IPv4","endpoints":[{}],"ports":[{{"name":"http","protocol":"TCP","port":8080}}]}}"#,
            meta(&format!("web-{number}"), number),
            endpoints.join(",")
        )
    }

    /// A slice as a benchmark makes them: only counters differ.
    pub(super) fn alike(number: u64) -> String {
        let endpoint = |n: u64| {
            format!(
                r#"{{"addresses":["10.{}.{}.{n}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"edge-node-{n}","targetRef":{{"kind":"Pod","namespace":"shop","name":"web-{number}-{n}-7c5ddbdf54-abcde","uid":"6f1f1a52-5f0e-4d5b-9a55-0123456789ab"}},"zone":"zone-a"}}"#,
                number / 256,
                number % 256
            )
        };
        let endpoints: Vec<String> = (0..100).map(endpoint).collect();
        format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",{},"labels":{{"kubernetes.io/service-name":"web-{number}"}}}},"addressType":"IPv4","endpoints":[{}],"ports":[{{"name":"http","protocol":"TCP","port":8080}}]}}"#,
            meta(&format!("web-{number}"), number),
            endpoints.join(",")
        )
    }

    /// A Service; some 600 bytes.
    pub(super) fn service(number: u64) -> String {
        let host = noise(number);
        format!(
            r#"{{"kind":"Service","apiVersion":"v1",{},"labels":{{"app":"web-{number}"}}}},"spec":{{"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":8080}}],"selector":{{"app":"web-{number}"}},"clusterIP":"10.{}.{}.{}","type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"}},"status":{{"loadBalancer":{{}}}}}}"#,
            meta(&format!("web-{number}"), number),
            host % 256,
            host >> 8 & 255,
            host >> 16 & 255
        )
    }
}

/// A list of these, in order of their keys, and its gzip stream.
fn gzipped(group: &str, resource: &str, objects: &[Object], format: Format) -> (Vec<u8>, Vec<u8>) {
    let kind = find_kind(group, resource).expect("the corpus must be usable");
    let how = Negotiated {
        format,
        ..Negotiated::default()
    };
    let list = || {
        how.list(
            kind,
            &ListMeta::at(ResourceVersion(1)),
            objects.to_vec(),
            Time::from_unix(0),
        )
    };
    let form = list().plain().expect("the corpus must be usable");
    (
        list().collect::<Vec<_>>().concat(),
        list().gzipped(form).collect::<Vec<_>>().concat(),
    )
}

fn parsed(group: &str, resource: &str, numbers: std::ops::Range<u64>, make: fn(u64) -> String) -> Vec<Object> {
    let kind = find_kind(group, resource).expect("the corpus must be usable");
    let mut objects: Vec<Object> = numbers
        .map(|n| Object::parse(make(n).into(), kind).expect("the corpus must be usable"))
        .collect();
    objects.sort_by(|a, b| a.key().cmp(b.key()));
    objects
}

/// Go's `gzip.BestSpeed`, which kube-apiserver uses, makes so many bytes of the same text.
#[test]
fn gzip_of_a_list_is_no_longer_than_kube_apiservers() {
    const GO: [(Format, [usize; 3]); 2] = [
        (Format::Json, [240_688, 52_621, 50_826]),
        (Format::Protobuf, [234_996, 46_296, 46_719]),
    ];
    let slices = parsed("discovery.k8s.io", "endpointslices", 0..60, corpus::slice);
    let services = parsed("", "services", 0..1000, corpus::service);
    let alike = parsed("discovery.k8s.io", "endpointslices", 0..60, corpus::alike);
    for (format, [of_slices, of_alike, of_services]) in GO {
        for (group, resource, objects, most) in [
            ("discovery.k8s.io", "endpointslices", &slices, of_slices),
            ("discovery.k8s.io", "endpointslices", &alike, of_alike),
            ("", "services", &services, of_services),
        ] {
            let (plain, packed) = gzipped(group, resource, objects, format);
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text)
                .expect("the corpus must be usable");
            assert!(text == plain, "{resource} {format:?}");
            assert!(packed.len() <= most, "{resource} {format:?}: {} > {most}", packed.len());
        }
    }
}

/// Pieces of the stream of a list: its runs, which are long, and the text around them.
fn runs_of(objects: &[Object]) -> Vec<Bytes> {
    let kind = find_kind("", "services").expect("the corpus must be usable");
    let list = Negotiated::default().list(
        kind,
        &ListMeta::at(ResourceVersion(1)),
        objects.to_vec(),
        Time::from_unix(0),
    );
    let form = list.plain().expect("the corpus must be usable");
    list.gzipped(form).filter(|piece| piece.len() > 200).collect()
}

#[test]
fn list_that_changed_a_little_is_compressed_again_only_where_it_changed() {
    let all = parsed("", "services", 0..2000, corpus::service);
    let listed = &all[..1999];
    let mut changed = listed.to_vec();
    changed[500] = changed[500].with_resource_version(ResourceVersion(5_000));
    let gone = [&all[..400], &all[401..1999]].concat();
    for (what, objects, most) in [
        ("nothing", listed, 0),
        ("a change", &changed, 2),
        ("a deletion", &gone, 4),
        ("a creation", &all, 4),
    ] {
        let before = runs_of(listed);
        let after = runs_of(objects);
        assert!(before.len() > 12, "{} runs", before.len());
        let is_kept = |piece: &&Bytes| before.iter().any(|known| known.as_ptr() == piece.as_ptr());
        let made = after.len() - after.iter().filter(is_kept).count();
        assert!(
            made <= most && (made == 0) == (most == 0),
            "{what}: {made} of {} were made again",
            after.len()
        );
    }
}
