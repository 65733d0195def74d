package main

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"
)

func TestTheImageHasTheProgramCertificatesAndTmpForEveryPlatform(t *testing.T) {
	dir := written(t, binaries(t))
	images := platforms(t, dir)
	require.Len(t, images, 2)
	for platform, image := range images {
		require.NoError(t, validate.Image(image), "against its digests")
		config, err := image.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, []string{"/lateen"}, config.Config.Entrypoint)
		require.Equal(t, "65532:65532", config.Config.User)
		require.Equal(t, "v1.2.3", config.Config.Labels["org.opencontainers.image.version"])
		files := contents(t, image)
		require.Equal(t, "lateen for "+platform, files["lateen"].content)
		require.EqualValues(t, 0o755, files["lateen"].Mode)
		require.EqualValues(t, 0o1777, files["tmp"].Mode)
		require.True(t, x509.NewCertPool().AppendCertsFromPEM([]byte(files["etc/ssl/certs/ca-certificates.crt"].content)))
		require.Equal(t, "lateen", files["velero"].Linkname, "the program that Velero's DaemonSet starts")
		require.Len(t, files, 7, "three directories lead to the certificates")
	}
	archive, err := os.Open(dir + ".tar")
	require.NoError(t, err)
	defer archive.Close()
	require.Subset(t, slices.Collect(maps.Keys(unpacked(t, archive))), []string{"oci-layout", "index.json"})
}

func TestTheImageIsPushedAndTheOneForWindowsHasItsBase(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	base, err := build(Spec{Platform: "windows/amd64", Compress: true, Files: []File{{Path: "/Windows/System32/cmd.exe", Content: []byte("cmd"), Mode: 0o755}}})
	require.NoError(t, err)
	reference, err := name.ParseReference(host + "/windows/nanoserver:ltsc2022")
	require.NoError(t, err)
	require.NoError(t, remote.Write(reference, base))

	require.ErrorContains(t, run([]string{"lateen", "--binaries=" + binaries(t), "--platforms=windows/amd64"}), "--windows-base")
	dir := written(t, binaries(t), "--platforms=linux/amd64,windows/amd64", "--windows-base="+reference.Name())
	require.NoError(t, run([]string{"push", "--layout=" + dir, "--name=" + host + "/lateen:v1"}))

	pushed, err := name.ParseReference(host + "/lateen:v1")
	require.NoError(t, err)
	image, err := remote.Image(pushed, remote.WithPlatform(v1.Platform{OS: "windows", Architecture: "amd64"}))
	require.NoError(t, err)
	require.NoError(t, validate.Image(image))
	files := contents(t, image)
	require.Contains(t, files, "Files/Windows/System32/cmd.exe")
	require.Equal(t, "lateen for windows/amd64", files["Files/lateen.exe"].content)
}

type entry struct {
	*tar.Header
	content string
}

// contents are the files of an image, flattened.
func contents(t *testing.T, image v1.Image) map[string]entry {
	t.Helper()
	flat := mutate.Extract(image)
	defer flat.Close()
	return unpacked(t, flat)
}

// unpacked are the files of a tar stream, all of root and without times.
func unpacked(t *testing.T, stream io.Reader) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		content, err := io.ReadAll(reader)
		require.NoError(t, err)
		require.Zero(t, header.Uid)
		require.Zero(t, header.ModTime.Unix())
		all[header.Name] = entry{header, string(content)}
	}
}

// platforms are the images of a layout, whose only manifest is an index of them.
func platforms(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	manifest, err := top.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1)
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	manifest, err = index.IndexManifest()
	require.NoError(t, err)
	all := map[string]v1.Image{}
	for _, each := range manifest.Manifests {
		image, err := index.Image(each.Digest)
		require.NoError(t, err)
		all[each.Platform.String()] = image
	}
	return all
}

// binaries is a directory with a binary for each platform.
func binaries(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for file, platform := range map[string]string{
		"lateen-linux-amd64": "linux/amd64", "lateen-linux-arm64": "linux/arm64", "lateen-windows-amd64.exe": "windows/amd64",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("lateen for "+platform), 0o600))
	}
	return dir
}

// written is the layout that `image lateen` writes of binaries.
func written(t *testing.T, binaries string, flags ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	args := []string{"lateen", "--binaries=" + binaries, "--name=lateen:v1.2.3", "--version=v1.2.3", "--layout=" + dir, "--archive=" + dir + ".tar"}
	require.NoError(t, run(append(args, flags...)))
	return dir
}

// stage are the instructions of one stage of the Dockerfile, continued lines joined, by their names.
type stage map[string][]string

func TestTheDockerfileMakesTheImageThatTheWriterMakes(t *testing.T) {
	stages := dockerfile(t)
	for platform, name := range map[string]string{"linux/amd64": "", "windows/amd64": "windows"} {
		t.Run(platform, func(t *testing.T) {
			spec, last := lateenSpec(platform, "lateen", "$VERSION"), stages[name]
			require.Equal(t, []string{`["` + spec.Entrypoint[0] + `"]`}, last["ENTRYPOINT"])
			require.Equal(t, []string{spec.User}, last["USER"])
			var labels, files []string
			for label, value := range spec.Labels {
				labels = append(labels, label+`="`+value+`"`)
			}
			require.ElementsMatch(t, labels, last["LABEL"])
			for _, file := range spec.Files {
				files = append(files, file.Path)
			}
			require.ElementsMatch(t, files, copied(t, stages["build"], last))
			require.ElementsMatch(t, []string{"FROM", "ARG", "LABEL", "COPY", "USER", "ENTRYPOINT"}, slices.Collect(maps.Keys(last)), "the writer does nothing else")
		})
	}
	require.Contains(t, strings.Join(stages["build"]["RUN"], "\n"), "mkdir -m 1777 /out/tmp")
	require.Equal(t, []string{"scratch"}, stages[""]["FROM"])
}

// copied are the paths in the image of the files that the last stage copies of /out of the first one.
func copied(t *testing.T, build, last stage) []string {
	t.Helper()
	require.Len(t, last["COPY"], 1)
	fields := strings.Fields(last["COPY"][0])
	require.Equal(t, "--from=build", fields[0])
	if fields[1] != "/out/" {
		return fields[2:]
	}
	found := []string{"/lateen"} // What `go build -o /out/` makes.
	for _, each := range regexp.MustCompile(`/out(/[a-z./-]*[a-z])`).FindAllStringSubmatch(strings.Join(build["RUN"], "\n"), -1) {
		found = append(found, each[1])
	}
	return slices.DeleteFunc(found, func(dir string) bool {
		return slices.ContainsFunc(found, func(file string) bool { return strings.HasPrefix(file, dir+"/") })
	})
}

func dockerfile(t *testing.T) map[string]stage {
	t.Helper()
	content, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	stages, name := map[string]stage{}, ""
	for line := range strings.Lines(strings.ReplaceAll(string(content), "\\\n", "")) {
		instruction, rest, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || instruction == "#" {
			continue
		}
		if instruction == "FROM" {
			rest, name, _ = strings.Cut(rest, " AS ")
			stages[name] = stage{}
		}
		stages[name][instruction] = append(stages[name][instruction], rest)
	}
	return stages
}
