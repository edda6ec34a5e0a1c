// Command patchcases writes test cases with the results of Kubernetes' own code: random strategic merge patches, random
// sequences of server-side applies and updates, and bodies with unknown, duplicate and wrong fields.
//
// The coordinator's implementations are pure functions; their tests read the files and must produce the same results.
//
//	go run ./cmd/patchcases ../crates
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
)

// seed makes the files identical on every run.
const seed = 20261121

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: patchcases CRATES")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "patchcases:", err)
		os.Exit(1)
	}
}

func run(crates string) error {
	files := map[string]func(*rand.Rand) ([]any, error){
		"patch/testdata/strategic.json": strategicCases,
		"patch/testdata/apply.json":     applyCases,
		"codec/testdata/decode.json":    decodeCases,
	}
	for name, generate := range files {
		cases, err := generate(rand.New(rand.NewSource(seed)))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var text bytes.Buffer
		text.WriteString("[\n")
		for i, one := range cases {
			line, err := json.Marshal(one)
			if err != nil {
				return err
			}
			text.Write(line)
			if i+1 < len(cases) {
				text.WriteByte(',')
			}
			text.WriteByte('\n')
		}
		text.WriteString("]\n")
		if err := os.WriteFile(filepath.Join(crates, filepath.FromSlash(name)), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
