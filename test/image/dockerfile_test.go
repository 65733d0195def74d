package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
			require.ElementsMatch(t, []string{"FROM", "ARG", "LABEL", "COPY", "USER", "ENTRYPOINT"}, keys(last), "the writer does nothing else")
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

func keys(of stage) []string {
	var all []string
	for key := range of {
		all = append(all, key)
	}
	return all
}
