// Command schema prints the Rust table of built-in types that the coordinator's transcoder, patches and field validation
// work from.
//
// It reflects over the Go types of k8s.io/api and k8s.io/apimachinery: JSON names, protobuf numbers, what is left out when
// empty, strategic merge keys. How lists and maps merge in server-side apply comes from the schema that client-go carries
// for its apply configurations. The versions are those of go.mod, so a new Kubernetes minor is: raise them, run this.
//
//	go run ./cmd/schema > ../crates/apimachinery/src/schema/table.rs
//	go run ./cmd/schema -check ../crates/apimachinery/src/schema/table.rs    exit 1 if the file is not what would be printed
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.String("check", "", "compare with this file instead of printing; exit 1 if it differs")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

func run(check string) error {
	merges, err := loadMerges()
	if err != nil {
		return err
	}
	schema, err := collect(merges)
	if err != nil {
		return err
	}
	text, err := render(schema)
	if err != nil {
		return err
	}
	if check == "" {
		_, err := os.Stdout.Write(text)
		return err
	}
	found, err := os.ReadFile(check)
	if err != nil {
		return err
	}
	if !bytes.Equal(found, text) {
		return fmt.Errorf("%s is out of date: run `go run ./cmd/schema > %s`", check, check)
	}
	return nil
}
