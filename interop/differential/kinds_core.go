package differential

// kinds are the resources of the run.
var kinds = []*kind{
	configMaps, secrets, services, endpoints, endpointSlices, leases, events, eventsV1, namespaces, nodes, pods, serviceAccounts,
}

var configMaps = &kind{
	name: "configmaps", base: "/api/v1", plural: "configmaps",
	object: `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"1","b":"two"}}`,
	change: `{"data":{"a":"2"}}`,
	variants: map[string]string{
		"empty":           `{"data":null}`,
		"binary":          `{"binaryData":{"bin":"AAEC"}}`,
		"binary-bad":      `{"binaryData":{"bin":"%%%"}}`,
		"both":            `{"binaryData":{"a":"AAEC"}}`,
		"immutable":       `{"immutable":true}`,
		"key-bad":         `{"data":{"a b":"1"}}`,
		"key-dots":        `{"data":{"..":"1"}}`,
		"value-number":    `{"data":{"a":1}}`,
		"value-null":      `{"data":{"a":null}}`,
		"data-list":       `{"data":["a"]}`,
		"data-text":       `{"data":"a"}`,
		"immutable-wrong": `{"immutable":"yes"}`,
	},
	updates: map[string]string{
		"data-removed": `{"data":null}`,
		"immutable":    `{"immutable":true}`,
		"key-bad":      `{"data":{"a b":"1"}}`,
	},
	patches: map[string]string{
		"data":   `{"data":{"a":"9","b":null}}`,
		"binary": `{"binaryData":{"x":"AA=="}}`,
		"bad":    `{"data":{"a b":"1"}}`,
		"type":   `{"data":{"a":7}}`,
	},
	fields: []string{"metadata.name=a", "metadata.name!=a", "metadata.namespace={ns}", "data.a=1", "spec.nodeName=x"},
}

var secrets = &kind{
	name: "secrets", base: "/api/v1", plural: "secrets",
	object: `{"apiVersion":"v1","kind":"Secret","data":{"a":"MQ=="},"type":"Opaque"}`,
	change: `{"data":{"a":"Mg=="}}`,
	variants: map[string]string{
		"no-type":         `{"type":null}`,
		"string-data":     `{"stringData":{"a":"x","s":"y"}}`,
		"string-data-bad": `{"stringData":{"a b":"x"}}`,
		"data-bad":        `{"data":{"a":"%%%"}}`,
		"key-bad":         `{"data":{"a b":"MQ=="}}`,
		"immutable":       `{"immutable":true}`,
		"docker":          `{"type":"kubernetes.io/dockerconfigjson"}`,
		"docker-good":     `{"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":"e30="}}`,
		"docker-not-json": `{"type":"kubernetes.io/dockerconfigjson","data":{".dockerconfigjson":"eA=="}}`,
		"dockercfg":       `{"type":"kubernetes.io/dockercfg"}`,
		"basic-auth":      `{"type":"kubernetes.io/basic-auth"}`,
		"ssh-auth":        `{"type":"kubernetes.io/ssh-auth"}`,
		"tls":             `{"type":"kubernetes.io/tls"}`,
		"tls-half":        `{"type":"kubernetes.io/tls","data":{"tls.crt":"eA=="}}`,
		"token":           `{"type":"kubernetes.io/service-account-token"}`,
		"custom-type":     `{"type":"example.com/own"}`,
	},
	updates: map[string]string{
		"type":        `{"type":"example.com/own"}`,
		"string-data": `{"stringData":{"n":"y"}}`,
		"immutable":   `{"immutable":true}`,
	},
	patches: map[string]string{
		"data":        `{"data":{"a":null,"z":"MQ=="}}`,
		"string-data": `{"stringData":{"a":"x"}}`,
		"type":        `{"type":"example.com/own"}`,
	},
	fields: []string{"metadata.name=a", "type=Opaque", "type!=Opaque", "data=x"},
}

var serviceAccounts = &kind{
	name: "serviceaccounts", base: "/api/v1", plural: "serviceaccounts",
	object: `{"apiVersion":"v1","kind":"ServiceAccount","secrets":[{"name":"s"}],"automountServiceAccountToken":false}`,
	change: `{"imagePullSecrets":[{"name":"pull"}]}`,
	variants: map[string]string{
		"plain":       `{"secrets":null,"automountServiceAccountToken":null}`,
		"automount":   `{"automountServiceAccountToken":true}`,
		"secret-full": `{"secrets":[{"name":"s","namespace":"x","kind":"Secret"}]}`,
		"wrong":       `{"secrets":"s"}`,
	},
	updates: map[string]string{"secrets": `{"secrets":[{"name":"t"}]}`},
	patches: map[string]string{
		"secrets":        `{"secrets":[{"name":"t"}]}`,
		"secrets-delete": `{"secrets":[{"name":"s","$patch":"delete"}]}`,
		"pull":           `{"imagePullSecrets":[{"name":"p"}]}`,
	},
	fields: []string{"metadata.name=a", "secrets=x"},
}

var namespaces = &kind{
	name: "namespaces", base: "/api/v1", plural: "namespaces", clusterScoped: true, hasStatus: true,
	object:       `{"apiVersion":"v1","kind":"Namespace"}`,
	change:       `{"metadata":{"annotations":{"x":"y"}}}`,
	statusChange: `{"status":{"phase":"Terminating"}}`,
	variants: map[string]string{
		"finalizer-spec": `{"spec":{"finalizers":["example.com/x","kubernetes"]}}`,
		"finalizer-odd":  `{"spec":{"finalizers":["odd one"]}}`,
		"no-finalizers":  `{"spec":{"finalizers":[]}}`,
		"status":         `{"status":{"phase":"Terminating"}}`,
		"name-label":     `{"metadata":{"labels":{"kubernetes.io/metadata.name":"liar"}}}`,
	},
	updates: map[string]string{
		"finalizers": `{"spec":{"finalizers":[]}}`,
		"status":     `{"status":{"phase":"Terminating"}}`,
		"name-label": `{"metadata":{"labels":{"kubernetes.io/metadata.name":"liar"}}}`,
	},
	patches: map[string]string{
		"finalizers":     `{"spec":{"finalizers":["example.com/z"]}}`,
		"labels-replace": `{"metadata":{"labels":{"$patch":"replace","only":"one"}}}`,
	},
	fields: []string{"metadata.name={id}-a", "status.phase=Active", "status.phase!=Active", "spec=x"},
}

var nodes = &kind{
	name: "nodes", base: "/api/v1", plural: "nodes", clusterScoped: true, hasStatus: true,
	object:       `{"apiVersion":"v1","kind":"Node","spec":{"podCIDR":"10.1.0.0/24","providerID":"p://1","taints":[{"key":"k","value":"v","effect":"NoSchedule"}]},"status":{"capacity":{"cpu":"2","memory":"4Gi"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-02T03:04:05Z","lastTransitionTime":"2026-01-02T03:04:05Z","reason":"R","message":"m"}],"addresses":[{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname","address":"h"}],"nodeInfo":{"machineID":"m","systemUUID":"s","bootID":"b","kernelVersion":"k","osImage":"o","containerRuntimeVersion":"containerd://2","kubeletVersion":"v1.36.3","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"}}}`,
	change:       `{"spec":{"unschedulable":true}}`,
	statusChange: `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Gone"}],"phase":"Running"}}`,
	variants: map[string]string{
		"plain":           `{"spec":null,"status":null}`,
		"taint-bad":       `{"spec":{"taints":[{"key":"a b","effect":"NoSchedule"}]}}`,
		"taint-effect":    `{"spec":{"taints":[{"key":"a","effect":"Never"}]}}`,
		"taint-twice":     `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"},{"key":"a","effect":"NoSchedule","value":"2"}]}}`,
		"cidr-bad":        `{"spec":{"podCIDR":"10.1.0.0"}}`,
		"cidrs":           `{"spec":{"podCIDRs":["10.1.0.0/24","fd00::/64"]}}`,
		"cidrs-mismatch":  `{"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.2.0.0/24"]}}`,
		"quantity-bad":    `{"status":{"capacity":{"cpu":"two"}}}`,
		"quantity-odd":    `{"status":{"capacity":{"cpu":"2000m","memory":"4096Mi","ephemeral-storage":"1e3","pods":110}}}`,
		"config-source":   `{"spec":{"configSource":{"configMap":{"name":"x"}}}}`,
		"wrong-type":      `{"spec":{"unschedulable":"yes"}}`,
		"address-missing": `{"status":{"addresses":[{"type":"InternalIP"}]}}`,
	},
	updates: map[string]string{
		"cidr":       `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`,
		"provider":   `{"spec":{"providerID":"p://2"}}`,
		"taints":     `{"spec":{"taints":[{"key":"n","effect":"NoExecute"}]}}`,
		"status":     `{"status":{"phase":"Running"}}`,
		"taint-time": `{"spec":{"taints":[{"key":"n","effect":"NoExecute","timeAdded":"2026-01-02T03:04:05Z"}]}}`,
	},
	patches: map[string]string{
		"taint-add":         `{"spec":{"taints":[{"key":"n","effect":"NoExecute"}]}}`,
		"taint-delete":      `{"spec":{"taints":[{"key":"k","$patch":"delete"}]}}`,
		"conditions":        `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`,
		"addresses-order":   `{"status":{"$setElementOrder/addresses":[{"type":"Hostname"},{"type":"InternalIP"}],"addresses":[{"type":"Hostname","address":"n"}]}}`,
		"unschedulable-off": `{"spec":{"unschedulable":null}}`,
	},
	fields: []string{"metadata.name={id}-a", "spec.unschedulable=false", "spec.unschedulable=true", "status.phase=x"},
}
