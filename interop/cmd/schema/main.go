// Command schema prints the Rust table of built-in types for the coordinator's transcoder, patches and field
// validation.
//
// It reflects over the Go types of k8s.io/api and k8s.io/apimachinery: JSON names, protobuf numbers, omission of empty
// values, strategic merge keys. The merge rules of server-side apply come from the schema that client-go contains for
// its apply configurations. The versions are those of go.mod. For a new Kubernetes minor version, raise them and run
// this command.
//
//	go run ./cmd/schema > ../crates/codec/src/schema/table.rs
//	go run ./cmd/schema -check ../crates/codec/src/schema/table.rs    exit 1 if the file differs
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
