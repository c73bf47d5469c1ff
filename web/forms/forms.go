// Package forms holds the forms of the console. It fills them in from the types of the domain and
// reads submitted forms back into these: the plan of a campaign, the arguments of a tool, the
// configuration of a device, the filter of its log, a rule of enrolment. A form keeps the text as
// typed. Unreadable text becomes a problem of its field, as a message key, or a refusal.
//
// It depends neither on HTTP nor on the look of a form, which package ui defines. It has no state,
// no lock and no goroutine.
package forms

import (
	"strconv"
	"strings"
	"time"
)

// parseTime reads a time in the viewer's zone; "" is nil.
func parseTime(text string, zone *time.Location) (*time.Time, error) {
	at, err := Moment(text, zone)
	if err != nil || at.IsZero() {
		return nil, err
	}
	return &at, nil
}

// parseInt reads a whole number; a nil limit does not apply. problem is the message key of an
// error.
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

// splitList splits a list at commas and white space.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,，、", r) })
}
