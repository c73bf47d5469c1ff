// Package forms is what the forms of the console hold. It fills them in from
// the domain's types and reads what was submitted back into these: the plan of
// a campaign, the arguments of a tool, the configuration of a device, the filter
// of its log, a rule of enrolment. A form keeps what was typed. What cannot be
// read becomes a problem of its field, as a message key, or a refusal.
//
// It does not know HTTP, nor how a form looks: that is package ui. It has no
// state, no lock and no goroutine.
package forms

import (
	"strconv"
	"strings"
	"time"
)

// localTime is what browsers send from a field for date and time; some add the
// seconds.
const localTime = "2006-01-02T15:04"

// parseTime reads a time in the zone of the viewer; "" is nil.
func parseTime(text string, zone *time.Location) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	at, err := time.ParseInLocation(localTime, text[:min(len(text), len(localTime))], zone)
	if err != nil {
		return nil, err
	}
	return new(at.UTC()), nil
}

// parseInt reads a whole number; a limit that is nil does not apply. The
// problem is the message of what is wrong with it.
func parseInt(text string, least, most *int64) (n int64, problem string) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return 0, "field.not_whole"
	case least != nil && n < *least, most != nil && n > *most:
		return 0, "field.out_of_range"
	}
	return n, ""
}

// splitList reads a list with commas, spaces or lines between its items.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,，、", r) })
}
