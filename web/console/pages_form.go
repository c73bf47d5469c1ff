package console

import (
	"errors"
	"net/http"
	"net/url"
	"time"
	"unicode"

	"fleetd/fleet"
	"fleetd/web/forms"
)

const formBytes = 64 << 10

// formError returns the error for a body that is not a form.
func formError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_form.unreadable", "detail", err.Error())
}

var errNotConfirmed = fleet.Refuse(fleet.ErrInvalid, "not_confirmed.typed")

// formMoment reads a time of a form in the zone; nil if the field is empty.
func formMoment(v url.Values, name string, zone *time.Location) (*time.Time, error) {
	at, err := forms.Moment(v.Get(name), zone)
	var refused *fleet.Error
	switch {
	case errors.As(err, &refused):
		return nil, refused.At(name)
	case err != nil || at.IsZero():
		return nil, err
	}
	return &at, nil
}

// betweenTools reports whether c separates patterns of tools.
func betweenTools(c rune) bool { return c == ',' || unicode.IsSpace(c) }
