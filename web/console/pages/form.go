package pages

import (
	"errors"
	"net/http"
	"net/url"
	"time"
	"unicode"

	"fleetd/fleet"
	"fleetd/web/forms"
)

// FormBytes bounds the body of a form, unless its route says otherwise.
const FormBytes = 64 << 10

// FormError returns the error for a body that is not a form.
func FormError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err
	}
	return fleet.Refuse(fleet.ErrInvalid, "invalid_form.unreadable", "detail", err.Error())
}

// ErrNotConfirmed means that the text typed to confirm an act is wrong.
var ErrNotConfirmed = fleet.Refuse(fleet.ErrInvalid, "not_confirmed.typed")

// FormMoment reads a time of a form in the zone; nil if the field is empty.
func FormMoment(v url.Values, name string, zone *time.Location) (*time.Time, error) {
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

// BetweenTools reports whether c separates patterns of tools.
func BetweenTools(c rune) bool { return c == ',' || unicode.IsSpace(c) }
