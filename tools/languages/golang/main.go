// The generator of SDKs: `generator LANGUAGE FOLDER < schema.json` writes the SDK of a Pulumi package into a folder.
//
// LANGUAGE is python, nodejs or go. An engine that asks for an SDK gives the address of its schema loader with
// -loader. Without one, a schema that refers to another package is refused, because nothing could load that package.
// Exit codes: 0 written, 1 refused. On an error nothing is written.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/blang/semver"
	"github.com/hashicorp/hcl/v2"
	golang "github.com/pulumi/pulumi/pkg/v3/codegen/go"
	"github.com/pulumi/pulumi/pkg/v3/codegen/nodejs"
	"github.com/pulumi/pulumi/pkg/v3/codegen/python"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

func main() {
	loader := flag.String("loader", "", "Address of the engine's schema loader.")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: generator [-loader ADDRESS] LANGUAGE FOLDER < schema.json")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), *loader, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}

func run(language, folder, address string, input io.Reader) error {
	text, err := io.ReadAll(input)
	if err != nil {
		return fmt.Errorf("The schema could not be read: %w.", err)
	}
	var spec schema.PackageSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return fmt.Errorf("The schema is not a Pulumi package schema: %w.", err)
	}
	loader, done, err := loaderAt(address)
	if err != nil {
		return err
	}
	defer done()
	// The engine has checked references before it asks, and its own hosts allow the rest.
	options := schema.ValidationOptions{AllowDanglingReferences: address != ""}
	pkg, problems, err := schema.BindSpec(spec, loader, options)
	if err != nil {
		return fmt.Errorf("The schema is invalid: %w.", err)
	}
	if problems.HasErrors() {
		var found []string
		for _, problem := range problems {
			if problem.Severity == hcl.DiagError {
				found = append(found, strings.TrimRight(problem.Summary, "; "))
			}
		}
		return fmt.Errorf("The schema is invalid: %s.", strings.Join(found, "; "))
	}
	files, err := generate(language, pkg, loader)
	if err != nil {
		return err
	}
	return write(folder, files)
}

// Each tool name is that of the official language host, because it is written into the files' first line.
func generate(language string, pkg *schema.Package, loader schema.ReferenceLoader) (map[string][]byte, error) {
	switch language {
	case "python":
		return python.GeneratePackage("pulumi-language-python", pkg, nil, loader)
	case "nodejs":
		return nodejs.GeneratePackage("pulumi-language-nodejs", pkg, nil, nil, false, loader)
	case "go":
		return golang.GeneratePackage("pulumi-language-go", pkg, nil)
	}
	return nil, fmt.Errorf("Language %q is not supported; supported languages are python, nodejs and go.", language)
}

func write(folder string, files map[string][]byte) error {
	for name, content := range files {
		path := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func loaderAt(address string) (schema.ReferenceLoader, func(), error) {
	if address == "" {
		return noLoader{}, func() {}, nil
	}
	client, err := schema.NewLoaderClient(address)
	if err != nil {
		return nil, nil, fmt.Errorf("The engine's schema loader at %s did not respond: %w.", address, err)
	}
	return schema.NewCachedLoader(client), func() { _ = client.Close() }, nil
}

// A loader that refuses. BindSpec needs one even if the schema refers to no other package.
type noLoader struct{}

func refused(name string) error {
	return errors.New("it refers to package " + name + ", which only an engine can load")
}

func (noLoader) LoadPackage(name string, _ *semver.Version) (*schema.Package, error) {
	return nil, refused(name)
}

func (noLoader) LoadPackageV2(_ context.Context, wanted *schema.PackageDescriptor) (*schema.Package, error) {
	return nil, refused(wanted.Name)
}

func (noLoader) LoadPackageReference(name string, _ *semver.Version) (schema.PackageReference, error) {
	return nil, refused(name)
}

func (noLoader) LoadPackageReferenceV2(
	_ context.Context, wanted *schema.PackageDescriptor,
) (schema.PackageReference, error) {
	return nil, refused(wanted.Name)
}
