package alert

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"fleetd/fleet"
)

// A Mailer sends a text to all of these addresses.
type Mailer interface {
	Send(ctx context.Context, to []string, subject, text string) error
}

// A Digest is what happened since the last mail.
type Digest struct {
	Items []DigestItem // oldest first
	More  int          // events that did not fit
	Open  int          // alerts that have not ended
	Test  bool         // somebody asked for it; there are no items
}

// A DigestItem is one event, with its alert as it is now.
type DigestItem struct {
	Record Record
	Alert  Alert
}

// MailStore keeps how far mails have come.
type MailStore interface {
	// AlertDigest lists the events after a number that are older than a time, oldest
	// first, and how many more there are.
	AlertDigest(ctx context.Context, after int64, before time.Time, limit int) (items []DigestItem, more int, last int64,
		err error)
	MailedThrough(ctx context.Context) (int64, error) // the newest event at first
	SetMailedThrough(ctx context.Context, seq int64) error
}

// Bounds of mails.
const (
	MaxRecipients = 20
	digestItems   = 50
	mailEvery     = time.Minute // at least between two mails
	mailLook      = 5 * time.Second
	mailSettles   = 2 * time.Second // events with a lower number may still be written
	mailBackoff   = time.Hour       // at most between two attempts
)

// MailLangs are the languages of mails.
var MailLangs = []string{"en", "zh-CN"}

// MailStatus is what became of the last mail.
type MailStatus struct {
	Enabled bool // there is a mail server
	At      time.Time
	Failure string // in English, as the mail server or its absence put it; "" if it was sent
}

// MailStatus returns what became of the last mail since the start of fleetd.
func (s *Service) MailStatus() MailStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mailed
}

// checkMail refuses recipients that are no addresses.
func (s *Service) checkMail(settings Settings) error {
	if len(settings.Recipients) > MaxRecipients {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_recipients.many", "limit", MaxRecipients).At("recipients")
	}
	for _, a := range settings.Recipients {
		if s.o.CheckAddress == nil || s.o.CheckAddress(a) != nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_recipients", "value", a).At("recipients")
		}
	}
	if !slices.Contains(MailLangs, settings.MailLang) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_mail_language", "value", settings.MailLang).
			At("language")
	}
	return nil
}

// TestMail sends a mail to the recipients now. A failure is an outcome, not an
// error.
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

// RunMail writes mails until ctx ends: at most one a minute, with all that has
// happened since the one before. What could not be sent is sent with the next
// attempt, later and later; after a restart, too. Without recipients nothing is
// kept for later.
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
			s.o.Log.Warn("alerts not mailed", "err", err, "again_in", wait)
			next = s.o.Now().Add(wait)
			wait = min(2*wait, mailBackoff)
		case sent:
			next, wait = s.o.Now().Add(s.o.MailEvery), s.o.MailEvery
		}
	}
}

// mailDigest sends what has happened since the last mail, if anything has.
func (s *Service) mailDigest(ctx context.Context) (sent bool, err error) {
	store, ok := s.o.Store.(MailStore)
	if !ok {
		return false, errors.New("the store keeps no mails")
	}
	after, err := store.MailedThrough(ctx)
	if err != nil {
		return false, err
	}
	items, more, last, err := store.AlertDigest(ctx, after, s.o.Now().Add(-mailSettles), digestItems)
	if err != nil || last == after {
		return false, err
	}
	settings, err := s.o.Store.AlertSettings(ctx)
	if err != nil {
		return false, err
	}
	if s.o.Mail != nil && len(settings.Recipients) > 0 {
		if err := s.sendMail(ctx, settings, Digest{Items: items, More: more, Open: s.countOpen()}); err != nil {
			return false, err
		}
		sent = true
	}
	// A mail that was sent twice, as this failed, is better than none.
	return sent, store.SetMailedThrough(context.WithoutCancel(ctx), last)
}

func (s *Service) countOpen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}
