package bundle

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/exposer/api"
)

const redacted = "REDACTED"

var (
	// credential matches names of values that are likely credentials, such as AWS_SECRET_ACCESS_KEY or sas_token.
	credential = regexp.MustCompile(`(?i)passw|secret|token|credential|private|(access|api|account|storage|application).?key|connection.?string|(^|[_.-])(pwd|sas|dsn|key)($|[_.-])`)
	// reference matches names of values that name a Secret, or a key of it.
	reference = regexp.MustCompile(`(?i)names?(paces?)?$|refs?$|^key$|envvar$`)
	// assignment matches a line that sets a credential, in an ini, properties or YAML file or JSON.
	assignment = regexp.MustCompile(`(?im)^.*(passw|secret|token|private|access.?key|api.?key)[^\n:=]*[:=].*$`)
	userinfo   = regexp.MustCompile(`://[^/@\s"]+@`)
)

// redact removes what is likely a credential: values by their names, in variables of containers, annotations, settings and
// ConfigMaps; passwords in URLs; commands of hooks. Names of Secrets and of their keys stay. It drops annotations that are copies of
// an object.
func redact(object *unstructured.Unstructured) {
	object.SetManagedFields(nil)
	for _, name := range []string{corev1.LastAppliedConfigAnnotation, api.AnnotationAdopted} {
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", name)
	}
	redactMap(object.Object, object.GetKind() == "ConfigMap")
}

// redactMap redacts a map in place. The text of a ConfigMap's value may set credentials itself.
func redactMap(in map[string]any, texts bool) {
	variable, _ := in["name"].(string) // of a list such as env
	for key, value := range in {
		switch value := value.(type) {
		case map[string]any:
			redactMap(value, texts || key == "annotations")
		case []any:
			if key == "command" && in["image"] == nil { // of a hook or probe, not of a container
				in[key] = redacted
				continue
			}
			redactList(value, texts)
		case string:
			switch name := key; {
			case credential.MatchString(name) && !reference.MatchString(name), key == "value" && credential.MatchString(variable):
				in[key] = redacted
			default:
				in[key] = redactText(value, texts)
			}
		}
	}
}

func redactList(in []any, texts bool) {
	for index, value := range in {
		switch value := value.(type) {
		case map[string]any:
			redactMap(value, texts)
		case []any:
			redactList(value, texts)
		case string:
			in[index] = redactText(value, texts)
		}
	}
}

func redactText(text string, assigned bool) string {
	if assigned {
		text = assignment.ReplaceAllStringFunc(text, func(line string) string {
			if strings.Contains(line, "secretNames") && !strings.Contains(line, `"value"`) { // of Lateen's configuration
				return line
			}
			return redacted
		})
	}
	return userinfo.ReplaceAllString(text, "://"+redacted+"@")
}
