package fleet

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// arguments are those of the order that the tool offers: stock firmware knows
// the url alone, and gets nothing else.
func (o *FirmwareOrder) arguments(schema json.RawMessage, url string) json.RawMessage {
	args := map[string]any{"url": url}
	types := propertyTypes(schema)
	for name, text := range map[string]string{"sha256": o.SHA256, "job": o.Job, "manifest": o.Manifest,
		"signature": o.Signature} {
		if text != "" && types[name] == "string" {
			args[name] = text
		}
	}
	if o.Size > 0 && types["size"] == "integer" {
		args["size"] = o.Size
	}
	wire, _ := json.Marshal(args) // strings and a number
	return wire
}

// propertyTypes are the properties of an input schema with their types; none
// of a schema that cannot be read.
func propertyTypes(schema json.RawMessage) map[string]string {
	var s struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	_ = json.Unmarshal(schema, &s) // a member of another shape leaves the rest
	types := make(map[string]string, len(s.Properties))
	for name, p := range s.Properties {
		types[name], _ = p.Type.(string)
	}
	return types
}

// accepts reports whether an answer says that the job was begun: the upgrade
// goes on after it, and reports itself.
func (o *FirmwareOrder) accepts(text string) bool {
	var answer struct {
		Job   string   `json:"job"`
		State JobState `json:"state"`
	}
	return o.Job != "" && json.Unmarshal([]byte(text), &answer) == nil && answer.Job == o.Job &&
		answer.State == JobAccepted
}

// JobState is where a job of a device stands.
type JobState string

const (
	JobAccepted JobState = "accepted"
	JobProgress JobState = "progress"
	JobDone     JobState = "done"
	JobFailed   JobState = "failed"
)

// Final reports whether the state is an outcome.
func (s JobState) Final() bool { return s == JobDone || s == JobFailed }

// UpgradeJobName names the job of an attempt at a campaign's upgrade, as the
// device reports on it: at most 48 bytes, as much as the included firmware keeps.
func UpgradeJobName(deployment uuid.UUID, attempt int) string {
	return deployment.String() + "." + strconv.Itoa(attempt)
}

// ParseUpgradeJob reads what [UpgradeJobName] wrote; false for any other name.
func ParseUpgradeJob(job string) (deployment uuid.UUID, attempt int, ok bool) {
	id, number, _ := strings.Cut(job, ".")
	deployment, err := uuid.Parse(id)
	if err != nil {
		return uuid.UUID{}, 0, false
	}
	attempt, err = strconv.Atoi(number)
	if err != nil || attempt < 1 || UpgradeJobName(deployment, attempt) != job {
		return uuid.UUID{}, 0, false
	}
	return deployment, attempt, true
}
