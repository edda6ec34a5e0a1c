"""The official Python client against the server of $KUBECONFIG: create, list in pages, patch, watch, delete."""

from kubernetes import client, config, watch

config.load_kube_config()
core = client.CoreV1Api()
coordination = client.CoordinationV1Api()

body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="python", labels={"by": "python"}), data={"k": "1"})
created = core.create_namespaced_config_map("default", body)
assert created.metadata.uid and created.metadata.resource_version, created

for number in range(5):
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"page-{number}", labels={"by": "python"}))
    core.create_namespaced_config_map("default", body)
page = core.list_namespaced_config_map("default", label_selector="by=python", limit=4)
assert len(page.items) == 4 and page.metadata._continue, page.metadata
rest = core.list_namespaced_config_map("default", label_selector="by=python", limit=4, _continue=page.metadata._continue)
assert len(rest.items) == 2 and rest.metadata.resource_version == page.metadata.resource_version, rest.metadata

patched = core.patch_namespaced_config_map("python", "default", {"data": {"k": "2"}})
assert patched.data == {"k": "2"}, patched.data

events = []
for event in watch.Watch().stream(
    core.list_namespaced_config_map,
    "default",
    resource_version=created.metadata.resource_version,
    label_selector="by=python",
    timeout_seconds=20,
):
    events.append((event["type"], event["object"].metadata.name))
    if event["object"].metadata.name == "python":
        break
assert events[-1] == ("MODIFIED", "python"), events
assert len(events) == 6, events

lease = client.V1Lease(metadata=client.V1ObjectMeta(name="python"), spec=client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15))
lease = coordination.create_namespaced_lease("default", lease)
lease.spec.lease_duration_seconds = 20
assert coordination.replace_namespaced_lease("python", "default", lease).spec.lease_duration_seconds == 20
try:
    coordination.replace_namespaced_lease("python", "default", lease)
    raise SystemExit("an update with an old resourceVersion was taken")
except client.ApiException as refused:
    assert refused.status == 409, refused

status = core.delete_namespaced_config_map("python", "default")
# Newer versions of the client give a Status as a plain dictionary.
assert (status["status"] if isinstance(status, dict) else status.status) == "Success", status
print("all held")
