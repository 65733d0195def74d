package docs

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// notRun is what the line above a block says of commands that the tests cannot run, and why they cannot.
const notRun = `^<!-- not run: .+ -->$`

// A block that readers copy is run by a test, or says above it why it is not.
func TestEveryBlockIsRunOrSaysWhyNot(t *testing.T) {
	commands := regexp.MustCompile(`(?m)^\s*(\$ )?(lateen|kubectl|velero|make|docker|podman|go|git|curl|helm|apt-get|sudo) `)
	for _, d := range documents(t) {
		for _, each := range d.blocks {
			switch each.language {
			case "sh":
				require.NotRegexp(t, notRun, each.above, "%s:%d is run", d.name, each.line)
			case "console":
				require.Regexp(t, notRun, each.above, "%s:%d is not run: the line above it has to say why", d.name, each.line)
			case "text": // drawings, and what is printed
				if each.above != printed && commands.MatchString(each.text) {
					require.Regexp(t, notRun, each.above, "%s:%d has commands: mark it sh, or say in the line above why it is not run", d.name, each.line)
				}
			case "yaml":
				var content any
				require.NoError(t, yaml.UnmarshalStrict([]byte(each.text), &content), "%s:%d", d.name, each.line)
			case "json":
				require.True(t, json.Valid([]byte(each.text)), "%s:%d is not JSON", d.name, each.line)
			case "mermaid": // diagrams
			default:
				require.Fail(t, "what it is has to stand behind the fence: sh, console, text, yaml, json or mermaid", "%s:%d is %q", d.name, each.line, each.language)
			}
		}
	}
}
