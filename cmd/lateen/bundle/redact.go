package bundle

import (
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/api"
)

const redacted = "REDACTED"

// credentials matches names of values that are likely credentials, such as AWS_SECRET_ACCESS_KEY or sas_token.
const credentials = `passw|passphrase|secret|token|credential|private|(access|api|account|storage|application|encryption|client|signing|master).?key|` +
	`connection.?string`

var (
	credential = regexp.MustCompile(`(?i)` + credentials + `|(^|[_.-])(pass|pwd|sas|dsn|key)($|[_.-])`)
	// reference matches names of values that name a Secret, or a key of it.
	reference = regexp.MustCompile(`(?i)names?(paces?)?$|refs?$|^key$|envvar$`)
	// assignment matches a line that sets a credential, in an ini or properties file, or a broken one.
	assignment = regexp.MustCompile(`(?im)^.*((` + credentials + `)[^\n:=]*|((^|[\s_."'-])(pass|pwd|sas|dsn)|[_.-]key)([\s_."'-][^\n:=]*)?)[:=].*$`)
	userinfo   = regexp.MustCompile(`://[^/@\s"]+@`)
	pem        = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END|$)`)
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
	path, _ := in["path"].(string)     // of a list of patches
	for key, value := range in {
		secret := credential.MatchString(key) && !reference.MatchString(key) || key == "value" && credential.MatchString(variable+path)
		if _, isText := value.(string); secret && (isText || texts) { // a field of an object, such as secretRef, is no credential
			in[key] = redacted
			continue
		}
		switch value := value.(type) {
		case map[string]any:
			if key == "init" { // of a restore
				redactCommands(value)
			}
			redactMap(value, texts || key == "annotations")
		case []any:
			if key == "command" && in["image"] == nil { // of a hook or probe, not of a container
				in[key] = redacted
				continue
			}
			redactList(value, texts || key == "mountOptions") // such as those of SMB
		case string:
			in[key] = redactText(value, texts)
		}
	}
}

// redactCommands redacts the commands of a hook's init containers.
func redactCommands(hook map[string]any) {
	containers, _ := hook["initContainers"].([]any)
	for _, one := range containers {
		container, _ := one.(map[string]any)
		for _, key := range []string{"command", "args"} {
			if container[key] != nil {
				container[key] = redacted
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

// redactText redacts a text, which is one of settings if it may assign values. The settings of YAML and JSON may be on other lines than
// their names.
func redactText(text string, assigned bool) string {
	if !assigned {
		return redactAnywhere(text)
	}
	if without, ok := redactStructure(text); ok {
		text = without
	} else {
		text = assignment.ReplaceAllStringFunc(text, func(line string) string {
			if strings.Contains(line, "secretNames") && !strings.Contains(line, `"value"`) { // of Lateen's configuration
				return line
			}
			return redacted
		})
	}
	return redactAnywhere(text)
}

func redactAnywhere(text string) string {
	return userinfo.ReplaceAllString(pem.ReplaceAllString(text, redacted), "://"+redacted+"@")
}

// redactStructure redacts a text that is a map or list in YAML or JSON; false if it is none, or has no credential. It loses comments.
func redactStructure(text string) (without string, ok bool) {
	var parsed any
	if strings.Contains(strings.TrimPrefix(text, "---"), "\n---") || yaml.Unmarshal([]byte(text), &parsed) != nil {
		return "", false
	}
	before := runtime.DeepCopyJSONValue(parsed)
	switch content := parsed.(type) {
	case map[string]any:
		redactMap(content, true)
	case []any:
		redactList(content, true)
	}
	encoded, err := yaml.Marshal(parsed)
	return string(encoded), err == nil && !reflect.DeepEqual(before, parsed)
}
