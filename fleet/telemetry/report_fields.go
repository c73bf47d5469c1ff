package telemetry

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"fleetd/fleet"
)

// reportFields are the members of an object that a device sent. Each is read separately: a
// member of a wrong type counts as missing, and the others remain valid.
type reportFields map[string]json.RawMessage

// readFields parses raw. It returns false if raw is not an object.
func readFields(raw json.RawMessage) (reportFields, bool) {
	var f reportFields
	err := json.Unmarshal(raw, &f)
	return f, err == nil && f != nil
}

// object returns the members of a nested object, or nil if the member is not an object.
func (f reportFields) object(name string) reportFields {
	inner, _ := readFields(f[name])
	return inner
}

func (f reportFields) text(name string, limit int) string {
	var s string
	if json.Unmarshal(f[name], &s) != nil {
		return ""
	}
	return fleet.CleanText(s, limit)
}

func (f reportFields) flag(name string) bool { return string(f[name]) == "true" }

// number returns an integer between least and most. It truncates a fraction: not every firmware
// counts in integers.
func (f reportFields) number(name string, least, most int64) (int64, bool) {
	raw := string(f[name])
	if raw == "" || (raw[0] != '-' && (raw[0] < '0' || raw[0] > '9')) {
		return 0, false
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		x, err := strconv.ParseFloat(raw, 64)
		if err != nil || math.Abs(x) > 1<<53 {
			return 0, false
		}
		n = int64(x)
	}
	return n, n >= least && n <= most
}

// count returns a number from 0 to most, and 0 for any other value.
func (f reportFields) count(name string, most int64) int64 {
	n, ok := f.number(name, 0, most)
	if !ok {
		return 0
	}
	return n
}

// reportMemory is how long a device may store a report that it cannot send.
const reportMemory = 24 * time.Hour

// moment returns the time of the report's content: the device's time if it is plausible, else
// now: a device must not place its reports at other times.
func (f reportFields) moment(now time.Time) time.Time {
	ms, ok := f.number("at", now.Add(-reportMemory).UnixMilli(), now.UnixMilli())
	if !ok {
		return now
	}
	return time.UnixMilli(ms).UTC()
}
