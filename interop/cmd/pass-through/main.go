// Command pass-through is a reverse proxy of Go's standard library in front of one kube-apiserver: TLS on both sides, no
// copies, no filters. It is the least that is between a client and the cloud when a hub is measured.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	listen := flag.String("listen", "", "host:port for clients")
	server := flag.String("server", "", "URL of the apiserver")
	ca := flag.String("ca", "", "file with the CA of the apiserver's certificate")
	cert := flag.String("cert", "", "file with the serving certificate")
	key := flag.String("key", "", "file with its key")
	flag.Parse()
	target, err := url.Parse(*server)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatalf("no certificate in %s", *ca)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableCompression: true},
		FlushInterval: -1, // events must not wait
	}
	log.Fatal((&http.Server{Addr: *listen, Handler: proxy}).ListenAndServeTLS(*cert, *key))
}
