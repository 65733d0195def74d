package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// built returns a directory with the bytes of bin/lateen in the place of each system's program.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	content := read(t, root, "bin/lateen")
	for _, each := range []string{"lateen-linux-amd64", "lateen-windows-amd64.exe", "lateen-darwin-arm64"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, each), []byte(content), 0o600))
	}
	return dir
}

// released returns the directory of a release of these programs.
func released(t *testing.T, binaries string) string {
	t.Helper()
	into := t.TempDir()
	require.NoError(t, run([]string{
		"--version=v0.1.0", "--date=2026-11-22T14:00:00+02:00", "--binaries=" + binaries, "--into=" + into,
		"--platforms=linux/amd64,darwin/arm64,windows/amd64", "--beside=" + root + "/LICENSE," + root + "/README.md",
		"--download=https://example.test/v0.1.0",
	}))
	return into
}

func read(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(content)
}

func TestARelease(t *testing.T) {
	binaries := built(t)
	release := released(t, binaries)

	t.Run("has the program, README and LICENSE in each archive", func(t *testing.T) {
		program := read(t, binaries, "lateen-linux-amd64")
		want := map[string]string{"lateen": program, "LICENSE": read(t, root, "LICENSE"), "README.md": read(t, root, "README.md")}
		require.True(t, maps.Equal(want, untar(t, filepath.Join(release, "lateen_0.1.0_linux_amd64.tar.gz"))))
		require.True(t, maps.Equal(want, untar(t, filepath.Join(release, "lateen_0.1.0_darwin_arm64.tar.gz"))))
		delete(want, "lateen")
		want["lateen.exe"] = program
		require.True(t, maps.Equal(want, unzip(t, filepath.Join(release, "lateen_0.1.0_windows_amd64.zip"))))
	})

	t.Run("has a valid SBOM with every module of the program", func(t *testing.T) {
		document, err := spdxjson.Read(strings.NewReader(read(t, release, "lateen_0.1.0_linux_amd64.spdx.json")))
		require.NoError(t, err)
		require.Equal(t, v2_3.Version, document.SPDXVersion)
		require.NoError(t, spdxlib.ValidateDocument(document))
		require.Equal(t, "2026-11-22T12:00:00Z", document.CreationInfo.Created)
		listed := map[string]string{}
		for _, part := range document.Packages {
			listed[part.PackageName] = part.PackageVersion
		}
		program, err := buildinfo.ReadFile(filepath.Join(binaries, "lateen-linux-amd64"))
		require.NoError(t, err)
		require.NotEmpty(t, program.Deps)
		for _, module := range program.Deps {
			require.Equal(t, module.Version, listed[module.Path], module.Path)
		}
		require.Contains(t, listed, "k8s.io/client-go")
		require.Equal(t, "v0.1.0", listed["lateen"])
		require.Equal(t, program.GoVersion, listed["stdlib"])
	})

	t.Run("has a krew manifest of the archives", func(t *testing.T) {
		var manifest struct {
			Spec struct {
				Version   string
				Platforms []struct{ URI, SHA256, Bin string }
			}
		}
		require.NoError(t, yaml.Unmarshal([]byte(read(t, release, "lateen.krew.yaml")), &manifest))
		require.Equal(t, "v0.1.0", manifest.Spec.Version)
		require.Len(t, manifest.Spec.Platforms, 3)
		require.Equal(t, "https://example.test/v0.1.0/lateen_0.1.0_linux_amd64.tar.gz", manifest.Spec.Platforms[0].URI)
		archive := sha256.Sum256([]byte(read(t, release, "lateen_0.1.0_linux_amd64.tar.gz")))
		require.Equal(t, hex.EncodeToString(archive[:]), manifest.Spec.Platforms[0].SHA256)
		require.Equal(t, "lateen.exe", manifest.Spec.Platforms[2].Bin)
	})
}

func untar(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)
	files, archive := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.Equal(t, header.Name == "lateen", header.FileInfo().Mode().Perm() == 0o755, header.Name)
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

func unzip(t *testing.T, path string) map[string]string {
	t.Helper()
	archive, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer archive.Close()
	files := map[string]string{}
	for _, file := range archive.File {
		content, err := fs.ReadFile(archive, file.Name)
		require.NoError(t, err)
		files[file.Name] = string(content)
	}
	return files
}

// The workflows are correct as far as a linter can say. Nothing here runs them.
func TestTheWorkflowsAreLinted(t *testing.T) {
	files, err := filepath.Glob(root + "/.github/workflows/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	require.NoError(t, err)
	found, err := linter.LintFiles(files, nil)
	require.NoError(t, err)
	require.Empty(t, found)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, use := range regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(string(text), -1) {
			require.Regexp(t, `^\./|@[0-9a-f]{40}$`, use[1], "a tag can be moved")
		}
	}
}
