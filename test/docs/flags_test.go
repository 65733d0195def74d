package docs

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// flagOf is a flag as the program explains it.
type flagOf struct{ name, fallback, usage string }

// lateen is what the program prints.
func lateen(t *testing.T, args ...string) string {
	t.Helper()
	binary, err := cluster.FindBinary("lateen")
	require.NoError(t, err)
	out, err := exec.CommandContext(within(t, testenv.Patience), binary, args...).Output()
	require.NoError(t, err)
	return string(out)
}

// commands are the program's, by their names; those that every program made with its library has are left out.
func commands(t *testing.T) []string {
	t.Helper()
	_, after, found := strings.Cut(lateen(t, "--help"), "Available Commands:\n")
	require.True(t, found)
	list, _, _ := strings.Cut(after, "\n\n")
	var all []string
	for each := range strings.Lines(list) {
		if name := strings.Fields(each)[0]; name != "help" && name != "completion" {
			all = append(all, name)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// flagsOf are the flags of a command but for --help.
func flagsOf(t *testing.T, command string) []flagOf {
	t.Helper()
	line := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)(?:[ \[]\S+)? {2,}(.*?)(?: \(default ("[^"]*"|[^ :)]+)\))?$`)
	var all []flagOf
	for _, found := range line.FindAllStringSubmatch(lateen(t, command, "--help"), -1) {
		if found[1] != "help" {
			all = append(all, flagOf{found[1], strings.Trim(found[3], `"`), found[2]})
		}
	}
	require.NotEmpty(t, all)
	return all
}

// What a flag of the agent is for is told in words of our own; that it is there, and its default, is the program's.
func TestEveryFlagOfTheAgentIsDescribed(t *testing.T) {
	section := page(t, "command-line").section(t, "Flags")
	described, defaults := map[string]bool{}, map[string]string{}
	for _, each := range section {
		for _, code := range codes(each.text) {
			if name, is := strings.CutPrefix(code, "--"); is {
				described[name] = true
			}
		}
	}
	for _, row := range rows(section) {
		if names := codes(row[0]); len(row) == 3 {
			for i, fallback := range strings.Split(row[1], ", ") {
				if i < len(names) {
					defaults[strings.TrimPrefix(names[i], "--")] = strings.Trim(fallback, "`")
				}
			}
		}
	}
	for _, each := range flagsOf(t, "node-agent") {
		require.True(t, described[each.name], "docs/command-line.md does not describe --%s below \"Flags\": %s", each.name, each.usage)
		delete(described, each.name)
		reported, tabled := defaults[each.name]
		if length, err := time.ParseDuration(each.fallback); tabled && err == nil {
			stated, err := time.ParseDuration(reported)
			require.NoError(t, err, "docs/command-line.md: the default of --%s", each.name)
			require.Equal(t, length, stated, "docs/command-line.md: the default of --%s", each.name)
		} else if tabled && each.fallback != "" {
			require.Equal(t, each.fallback, reported, "docs/command-line.md: the default of --%s", each.name)
		}
	}
	require.Empty(t, described, "docs/command-line.md describes flags that lateen node-agent does not have")
}

// A flag that is named anywhere is one.
func TestFlagsThatAreNamedExist(t *testing.T) {
	known := map[string]string{}
	for _, command := range commands(t) {
		for _, each := range flagsOf(t, command) {
			known[each.name] = command
		}
	}
	name := regexp.MustCompile(`^--([a-z][a-z0-9-]*)`)
	for _, d := range documents(t) {
		if d.name == "docs/velero-protocol.md" {
			continue // its flags are Velero's
		}
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				found := name.FindStringSubmatch(code)
				if found == nil || strings.Contains(code, "…") {
					continue
				}
				require.Contains(t, known, found[1], "%s:%d names a flag that no command has", d.name, each.number)
			}
		}
	}
}

// A command that is named anywhere is one.
func TestCommandsThatAreNamedExist(t *testing.T) {
	known := commands(t)
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				if description := strings.Fields(code); len(description) > 1 && description[0] == "lateen" && description[1] != "…" {
					require.Contains(t, known, description[1], "%s:%d names a command that is none", d.name, each.number)
				}
			}
		}
	}
}
