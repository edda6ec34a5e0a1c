package differential

import (
	_ "embed"
	"net/http"

	"k8s.io/client-go/rest"

	"yurt.test/interop/harness"
)

// RBAC holds the rights of the identities: applied to kube-apiserver, and given to the coordinator as a file.
//
//go:embed rbac.yaml
var RBAC []byte

// nodeName is the node of the identity Node.
const nodeName = "differential-node"

// certificates are the common name and the groups of the identities with a certificate.
var certificates = map[Identity][]string{
	Admin:    {"interop-admin", "system:masters"},
	Viewer:   {"viewer", "viewers"},
	Editor:   {"editor", "editors"},
	Stranger: {"stranger", "strangers"},
	Node:     {"system:node:" + nodeName, "system:nodes"},
}

// Server is one of the two servers.
type Server struct {
	// Name is for messages.
	Name string
	// URL is https://host:port.
	URL string

	clients map[Identity]*http.Client
}

// NewServer creates the clients of all identities, signed by ca, for the server at url.
func NewServer(name, url string, ca *harness.CA) (*Server, error) {
	s := &Server{Name: name, URL: url, clients: map[Identity]*http.Client{}}
	for _, identity := range []Identity{Admin, Viewer, Editor, Stranger, Node, Anonymous, BadToken} {
		config := harness.Kubeconfig{Server: url, CA: ca.CertPEM}
		if subject := certificates[identity]; subject != nil {
			pair, err := ca.IssueClient(subject[0], subject[1:]...)
			if err != nil {
				return nil, err
			}
			config.Identity = &pair
		}
		if identity == BadToken {
			config.Token = "not-a-token"
		}
		restConfig := config.Config("differential/1.0")
		restConfig.DisableCompression = true // scripts set their own Accept-Encoding
		client, err := rest.HTTPClientFor(restConfig)
		if err != nil {
			return nil, err
		}
		s.clients[identity] = client
	}
	return s, nil
}
