// `generator LANGUAGE FOLDER LOADER < schema.json` writes the SDK of a Pulumi package into a folder.
//
// LANGUAGE is python or nodejs, LOADER the address of the engine that loads other packages that the schema refers to.
// Exit codes: 0 written, 1 refused. A refusal is one sentence on stderr, and nothing is written.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pulumi/pulumi/pkg/v3/codegen/nodejs"
	"github.com/pulumi/pulumi/pkg/v3/codegen/python"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

func main() {
	files, err := generate(os.Args[1], os.Args[3])
	for name, content := range files {
		path := filepath.Join(os.Args[2], filepath.FromSlash(name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The generators write the name of the official language host into the first line of each file.
func generate(language, address string) (map[string][]byte, error) {
	var spec schema.PackageSpec
	if err := json.NewDecoder(os.Stdin).Decode(&spec); err != nil {
		return nil, fmt.Errorf("The schema is not a Pulumi package schema: %w.", err)
	}
	loader, err := schema.NewLoaderClient(address)
	if err != nil {
		return nil, err
	}
	pkg, problems, err := schema.BindSpec(spec, loader, schema.ValidationOptions{AllowDanglingReferences: true})
	if err == nil && problems.HasErrors() {
		err = problems
	}
	if err != nil {
		return nil, fmt.Errorf("The schema is invalid: %w.", err)
	}
	if language == "nodejs" {
		return nodejs.GeneratePackage("pulumi-language-nodejs", pkg, nil, nil, true, loader)
	}
	return python.GeneratePackage("pulumi-language-python", pkg, nil, loader)
}
