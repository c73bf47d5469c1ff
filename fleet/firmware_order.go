package fleet

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// A FirmwareOrder makes an upgrade call of a campaign. The call's outcome is
// that of the attempt, by evidence: succeeded when a boot poll names the build,
// tool_error when the device refused or came back without it.
type FirmwareOrder struct {
	URL       string // one-time link of the attempt
	ELFSHA256 string // of the image
	// What follows goes to devices whose tool has a property of that name.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it; the device reports on it
	Manifest  string // signed statement about the image; "" without one
	Signature string // of the manifest, base64
	// Notify is called when the call was sent, answered or not sent, as it
	// happens; it must not block, and may be nil. Kinds: sent, answer, job (the
	// device accepted the named job), refused, late_answer, not_sent. Every order
	// gets sent or not_sent, also if [Calls.Make] fails; Code and Detail of
	// not_sent and refused are those of the call's error.
	Notify func(Evidence)
	// Timeout is how long the call waits for its evidence; it must be above 0.
	Timeout time.Duration
	// Done ends the call when the attempt was judged otherwise; may be nil.
	Done <-chan struct{}
}

// done is nil, which never ends, for a call that is no upgrade.
func (o *FirmwareOrder) done() <-chan struct{} {
	if o == nil {
		return nil
	}
	return o.Done
}

func (o *FirmwareOrder) notify(e Evidence) {
	if o != nil && o.Notify != nil {
		o.Notify(e)
	}
}

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

// A FirmwareOffer is the firmware section of an answer to a boot poll.
type FirmwareOffer struct {
	Version string
	URL     string // one-time link of the attempt
	Force   bool   // install although the version is not newer
	// For the included firmware; stock firmware does not look at them.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it
	Manifest  string // signed statement about the image; "" without one
	Signature string // of the manifest, base64
}

var comparableVersion = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,5}$`)

// ComparableVersion reports whether a stock device survives comparing the
// version: it parses each part as a number, and throws on one that is not.
func ComparableVersion(version string) bool { return comparableVersion.MatchString(version) }
