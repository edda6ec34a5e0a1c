// Command yurthub-1.7.0 is OpenYurt's node agent 1.7.0, built from its published module.
package main

import (
	"flag"
	"os"

	"github.com/openyurtio/openyurt/cmd/yurthub/app"
	"k8s.io/apiserver/pkg/server"
)

func main() {
	cmd := app.NewCmdStartYurtHub(server.SetupSignalContext())
	cmd.Flags().AddGoFlagSet(flag.CommandLine)
	if err := cmd.Execute(); err != nil {
		os.Exit(1)
	}
}
