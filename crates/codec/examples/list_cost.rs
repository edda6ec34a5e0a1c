//! Writes a list of 1,000 EndpointSlices of 100 endpoints so many times: `time list_cost protobuf 10`. With 0 rounds
//! the time is that of making the objects; the first round of protobuf also measures every item.

use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_codec::negotiation::{Format, Negotiated};

fn slice(number: usize) -> String {
    let endpoint = |at: usize| {
        format!(
            r#"{{"addresses":["10.{}.{}.{at}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"targetRef":{{"kind":"Pod","namespace":"shop","name":"web-{number}-{at}-7c5ddbdf54-abcde","uid":"6f1f1a52-5f0e-4d5b-9a55-0123456789ab"}},"nodeName":"edge-node-{at}","zone":"zone-a"}}"#,
            number / 256,
            number % 256
        )
    };
    let endpoints: Vec<String> = (0..100).map(endpoint).collect();
    format!(
        r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"web-{number}","namespace":"shop","uid":"6f1f1a52-5f0e-4d5b-9a55-0123456789ab","resourceVersion":"{number}","labels":{{"kubernetes.io/service-name":"web-{number}"}}}},"addressType":"IPv4","endpoints":[{}],"ports":[{{"name":"http","protocol":"TCP","port":8080}}]}}"#,
        endpoints.join(",")
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let format = match std::env::args().nth(1).as_deref() {
        Some("json") => Format::Json,
        Some("yaml") => Format::Yaml,
        _ => Format::Protobuf,
    };
    let rounds: usize = std::env::args().nth(2).map_or(Ok(1), |text| text.parse())?;
    let kind = find_kind("discovery.k8s.io", "endpointslices").ok_or("no such kind")?;
    let objects: Vec<Object> = (1..=1000)
        .map(|number| Object::parse(slice(number).into(), kind))
        .collect::<Result<_, _>>()?;
    let meta = ListMeta::at(ResourceVersion(1));
    let how = Negotiated {
        format,
        ..Negotiated::default()
    };
    for _ in 0..rounds {
        let list = how.list(kind, &meta, objects.clone(), Time::from_unix(0));
        let bytes: usize = list.map(|piece| piece.len()).sum();
        assert!(bytes > 1 << 20);
    }
    Ok(())
}
