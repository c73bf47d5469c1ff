package alert

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
)

// A Mailer sends a text to a list of addresses.
type Mailer interface {
	Send(ctx context.Context, to []string, subject, text string) error
}

// A Digest is a list of the events since the last mail.
type Digest struct {
	Items []DigestItem // oldest first
	More  int          // events that did not fit
	Open  int          // alerts that have not ended
	Test  bool         // test mail without items, requested by a person
}

// A DigestItem is one event, with the current state of its alert.
type DigestItem struct {
	Record Record
	Alert  Alert
}

// MailStore stores which events have been mailed.
type MailStore interface {
	// AlertDigest lists the events within the route that come after a number, are older than a time
	// and are not silenced, oldest first, and the number of further ones. It ignores the devices of
	// the route. last is the number of the newest event, also if it is not in the list.
	AlertDigest(ctx context.Context, r Route, after int64, before time.Time, limit int) (items []DigestItem, more int,
		last int64, err error)
	MailedThrough(ctx context.Context) (int64, error) // initially the newest event
	SetMailedThrough(ctx context.Context, seq int64) error
}

// Limits of mails.
const (
	MaxRecipients = 20
	digestItems   = 50
	mailEvery     = time.Minute // minimum interval between two mails
	mailLook      = 5 * time.Second
	mailSettles   = 2 * time.Second // events with a lower number may still be written
	mailBackoff   = time.Hour       // maximum interval between two attempts
)

// MailLangs are the languages of mails.
var MailLangs = []string{"en", "zh-CN"}

// MailStatus is the outcome of the last mail.
type MailStatus struct {
	Enabled bool // a mail server is configured
	At      time.Time
	Failure string // in English, from the mail server or about its absence; "" if the mail was sent
}

// MailStatus returns the outcome of the last mail since fleetd started.
func (s *Service) MailStatus() MailStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mailed
}

// checkMail refuses recipients that are not valid addresses.
func (s *Service) checkMail(settings Settings) error {
	if len(settings.Recipients) > MaxRecipients {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_recipients.many", "limit", MaxRecipients).At("recipients")
	}
	for _, a := range settings.Recipients {
		if s.o.CheckAddress == nil || s.o.CheckAddress(a) != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_recipients", "value", a).At("recipients")
		}
	}
	if _, err := settings.mailRoute().Check(); err != nil {
		return err
	}
	if !slices.Contains(MailLangs, settings.MailLang) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_mail_language", "value", settings.MailLang).
			At("language")
	}
	return nil
}

// mailRoute returns the route of mails, which has no filter of devices: a digest is about events, and
// an alert may come into a filter without one.
func (s Settings) mailRoute() Route { return Route{Least: s.MailLeast, Kinds: s.MailKinds} }

// TestMail sends a mail to the recipients now. A failure is a result, not an error.
func (s *Service) TestMail(ctx context.Context, by fleet.Principal) (MailStatus, error) {
	if err := by.May(fleet.RoleAdmin, "manage_alerts"); err != nil {
		return MailStatus{}, err
	}
	settings, err := s.Settings(ctx, by)
	switch {
	case err != nil:
		return MailStatus{}, err
	case s.o.Mail == nil:
		return MailStatus{}, fleet.Refuse(fleet.ErrConflict, "mail_off")
	case len(settings.Recipients) == 0:
		return MailStatus{}, fleet.Refuse(fleet.ErrConflict, "mail_off.recipients")
	}
	s.sendMail(ctx, settings, Digest{Test: true})
	return s.MailStatus(), nil
}

func (s *Service) sendMail(ctx context.Context, settings Settings, d Digest) error {
	subject, text := s.o.MailText(settings.MailLang, d)
	err := s.o.Mail.Send(ctx, settings.Recipients, subject, text)
	status := MailStatus{Enabled: true, At: s.o.Now()}
	if err != nil {
		status.Failure = fleet.CleanText(strings.TrimSpace(err.Error()), 300)
	}
	s.mu.Lock()
	s.mailed = status
	s.mu.Unlock()
	return err
}

// RunMail sends mails until ctx ends: at most one a minute, with all events since the
// previous one. It repeats a failed mail with growing intervals, even after a restart. If
// there are no recipients, it saves nothing for later.
func (s *Service) RunMail(ctx context.Context) error {
	tick := time.NewTicker(s.o.MailLook)
	defer tick.Stop()
	var next time.Time
	wait := s.o.MailEvery
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if s.o.Now().Before(next) {
			continue
		}
		sent, err := s.mailDigest(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.o.Log.Warn("could not mail alerts", "err", err, "again_in", wait)
			next = s.o.Now().Add(wait)
			wait = min(2*wait, mailBackoff)
		case sent:
			next, wait = s.o.Now().Add(s.o.MailEvery), s.o.MailEvery
		}
	}
}

// mailDigest sends the events since the last mail, if there are any.
func (s *Service) mailDigest(ctx context.Context) (sent bool, err error) {
	store, ok := s.o.Store.(MailStore)
	if !ok {
		return false, errors.New("the store does not support mails")
	}
	after, err := store.MailedThrough(ctx)
	if err != nil {
		return false, err
	}
	settings, err := s.o.Store.AlertSettings(ctx)
	if err != nil {
		return false, err
	}
	items, more, last, err := store.AlertDigest(ctx, settings.mailRoute(), after, s.o.Now().Add(-mailSettles), digestItems)
	if err != nil || last == after {
		return false, err
	}
	if s.o.Mail != nil && len(settings.Recipients) > 0 && len(items) > 0 {
		if err := s.sendMail(ctx, settings, Digest{Items: items, More: more, Open: s.countOpen()}); err != nil {
			return false, err
		}
		sent = true
	}
	// If this fails, the mail is sent twice, which is better than not at all.
	return sent, store.SetMailedThrough(context.WithoutCancel(ctx), last)
}

func (s *Service) countOpen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}
