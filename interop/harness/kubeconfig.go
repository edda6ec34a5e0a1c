package harness

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig is the access to one server with one identity.
type Kubeconfig struct {
	// Server is the URL.
	Server string
	// CA is the PEM of the server's certificate authority, nil for plain HTTP.
	CA []byte
	// Identity is the client certificate, nil for none.
	Identity *Pair
	// Token is a bearer token, empty for none.
	Token string
}

// Write stores it as a kubeconfig file with everything embedded.
func (k Kubeconfig) Write(path string) error {
	user := &clientcmdapi.AuthInfo{Token: k.Token}
	if k.Identity != nil {
		user.ClientCertificateData, user.ClientKeyData = k.Identity.Cert, k.Identity.Key
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cloud"] = &clientcmdapi.Cluster{Server: k.Server, CertificateAuthorityData: k.CA}
	config.AuthInfos["user"] = user
	config.Contexts["default"] = &clientcmdapi.Context{Cluster: "cloud", AuthInfo: "user"}
	config.CurrentContext = "default"
	return clientcmd.WriteToFile(*config, path)
}

// Config is the equivalent client-go configuration, without rate limit (the tests pace themselves) and without
// deprecation warnings (Endpoints).
func (k Kubeconfig) Config(userAgent string) *rest.Config {
	config := &rest.Config{Host: k.Server, BearerToken: k.Token, UserAgent: userAgent, QPS: -1, WarningHandler: rest.NoWarnings{}}
	config.CAData = k.CA
	if k.Identity != nil {
		config.CertData, config.KeyData = k.Identity.Cert, k.Identity.Key
	}
	return config
}

// ReadKubeconfig reads the current context of a kubeconfig file with embedded certificates.
func ReadKubeconfig(path string) (Kubeconfig, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return Kubeconfig{}, err
	}
	k := Kubeconfig{Server: config.Host, CA: config.CAData, Token: config.BearerToken}
	if len(config.CertData) > 0 {
		k.Identity = &Pair{Cert: config.CertData, Key: config.KeyData}
	}
	return k, nil
}
