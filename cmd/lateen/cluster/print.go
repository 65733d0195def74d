package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Format is the value of the flag -o: a format for programs, or empty for text.
type Format string

// The formats for programs.
const (
	JSON Format = "json"
	YAML Format = "yaml"
)

// AddFlag declares the flag.
func (f *Format) AddFlag(flags *pflag.FlagSet, usage string) { flags.VarP(f, "output", "o", usage) }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch format := Format(text); format {
	case "", JSON, YAML:
		*f = format
		return nil
	}
	return errors.New("use json or yaml, or remove it")
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "string" }

// Print writes a value in the format, which is not empty.
func (f *Format) Print(out io.Writer, value any) error {
	if *f == JSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// PrintManifests writes a List for kubectl, as velero does; nothing without a format.
func (f *Format) PrintManifests(out io.Writer, manifests []*unstructured.Unstructured) error {
	if *f == "" {
		return nil
	}
	if err := f.Print(out, map[string]any{"apiVersion": "v1", "kind": "List", "items": manifests}); err != nil {
		return fmt.Errorf("print objects: %w", err)
	}
	return nil
}
