package releases

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// flashRoutes are the page that installs firmware on blank boards, and the files that it downloads.
// All of it requires an operator, because the files are firmware.
func (s *Server) flashRoutes() []pages.Route {
	const operator = fleet.RoleOperator
	image := ui.PathFlash + "/{image}"
	return []pages.Route{
		{Method: "GET", Pattern: ui.PathFlash, Role: operator, Reach: access.Fleet, Raw: s.withSerial(s.showFlash)},
		{Method: "POST", Pattern: ui.FlashPath("claim"), Role: operator, Reach: access.Fleet,
			Raw: s.withSerial(s.claimFlashed)},
		{Method: "POST", Pattern: ui.FlashPath("build"), Role: operator, Reach: access.Fleet,
			Raw:  slowUpload(s.withSerial(s.uploadBuild)),
			Body: uploadsBytes, Heavy: heavy.Upload},
		{Method: "POST", Pattern: image + "/layout", Role: operator, Reach: access.Fleet,
			Raw:  slowUpload(s.Serve(s.uploadLayout)),
			Body: uploadsBytes, Heavy: heavy.Upload},
		{Method: "GET", Pattern: image + "/manifest.json", Role: operator, Reach: access.Fleet, Raw: s.sendManifest},
		{Method: "GET", Pattern: image + "/parts/{n}.bin", Role: operator, Reach: access.Fleet,
			Raw: s.sendPart, Wait: downloadWait},
		{Method: "GET", Pattern: image + "/parts.zip", Role: operator, Reach: access.Fleet,
			Raw: s.sendParts, Wait: downloadWait},
		{Method: "GET", Pattern: image + "/merged.bin", Role: operator, Reach: access.Fleet,
			Raw: s.sendMerged, Wait: downloadWait},
	}
}

// withSerial serves a page that may open serial ports. See [ui.FlashCSP] for the one addition to
// its policy.
func (s *Server) withSerial(h pages.Handler) http.HandlerFunc {
	page := s.Serve(h)
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", ui.FlashCSP)
		w.Header().Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), serial=(self)")
		page(w, r)
	}
}

func (s *Server) showFlash(r *http.Request) (pages.Answer, error) {
	page, err := s.flashPage(r)
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) flashPage(r *http.Request) (page ui.FlashPage, err error) {
	ctx, q := r.Context(), r.URL.Query()
	page = ui.FlashPage{Chip: fleet.CleanText(q.Get("chip"), 20), Setup: s.devices.Setup(ctx)}
	all, err := s.Firmware.Installable(ctx, pages.ViewerOf(ctx).Actor(), "")
	if err != nil {
		return page, err
	}
	for _, i := range all {
		page.Chips = append(page.Chips, i.Image.Chip)
		switch {
		case !i.Ready():
			page.Missing = append(page.Missing, ui.NewFlashChoice(i))
		case page.Chip == "" || i.Image.Chip == page.Chip:
			page.Choices = append(page.Choices, ui.NewFlashChoice(i))
		}
	}
	slices.Sort(page.Chips)
	page.Chips = slices.Compact(page.Chips)
	if err := s.choose(ctx, &page, q.Get("image")); err != nil {
		return page, err
	}
	page.Joining, err = s.joining(ctx, s.since(r), page.Chosen)
	return page, err
}

// choose selects the image in the address, or the only one there is.
func (s *Server) choose(ctx context.Context, page *ui.FlashPage, asked string) error {
	if asked == "" && len(page.Choices) == 1 {
		asked = page.Choices[0].Ref.SHA256
	}
	if !isSHA256(asked) {
		return nil
	}
	found, err := s.Firmware.Install(ctx, pages.ViewerOf(ctx).Actor(), asked)
	switch {
	case errors.Is(err, fleet.ErrNotFound), errors.Is(err, fleet.ErrConflict):
		page.Why = pages.Explain(ctx, err)
		return nil
	case err != nil:
		return err
	}
	page.Chosen = &ui.FlashTarget{Installable: found, Browser: chipFamilies[found.Image.Chip] != ""}
	return nil
}

// since returns the time from which devices count as new: when the page was first opened, which is
// in its address.
func (s *Server) since(r *http.Request) time.Time {
	now := s.Now()
	ms, err := strconv.ParseInt(r.FormValue("since"), 10, 64)
	at := time.UnixMilli(ms).UTC()
	if err != nil || at.After(now) || now.Sub(at) > 24*time.Hour {
		return now.Truncate(time.Millisecond)
	}
	return at
}

// claimFlashed admits the device that shows the code, and stays on the page.
func (s *Server) claimFlashed(r *http.Request) (pages.Answer, error) {
	ctx, code := r.Context(), r.PostFormValue("code")
	id, err := s.devices.Claim(r, code)
	if err != nil && pages.StatusOf(err) < http.StatusInternalServerError {
		page, readErr := s.flashPage(withQuery(r, r.PostFormValue("next")))
		if readErr != nil {
			return pages.Answer{}, readErr
		}
		page.Code, page.Problem = fleet.CleanText(code, 12), pages.Explain(ctx, err)
		a, _ := pages.ShowAgain(page.Page())
		a.Status = pages.StatusOf(err)
		return a, nil
	}
	if err != nil {
		return pages.Answer{}, err
	}
	s.Flash(ctx, ui.Flash{Text: pages.Text(ctx, "flasher.claimed", "device", fleet.Device{ID: id}.Title()),
		Link: ui.DevicePath(id)})
	return pages.GoTo(flashAgain(r.PostFormValue("next")))
}
