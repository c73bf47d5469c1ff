package forms

import (
	"time"

	"fleetd/fleet"
)

// momentLayouts are what a field for a date and a time may contain, in the viewer's zone unless it
// names another. Addresses have a T between date and time, the fields of the console a blank.
var momentLayouts = []string{"2006-1-2 15:04", "2006-1-2T15:04", "2006-1-2 15:04:05", "2006-1-2T15:04:05", time.DateOnly,
	"2006-1-2", time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00"}

// localTime is the layout of a time in the forms and addresses of the console.
const localTime = "2006-01-02T15:04"

// Moment reads the text of such a field; "" is the zero time.
func Moment(text string, zone *time.Location) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range momentLayouts {
		if at, err := time.ParseInLocation(layout, text, zone); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fleet.Refuse(fleet.ErrInvalid, "invalid_time", "value", text)
}
