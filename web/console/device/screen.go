package device

import (
	"net/http"

	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

func (s *Server) showScreen(r *http.Request) (pages.Answer, error) {
	d, err := s.Board(r)
	if err != nil {
		return pages.Answer{}, err
	}
	page := ui.ScreenPage{Head: s.Head(r, d, "screen")}
	if page.Last, err = s.lastCall(r, d); err != nil {
		return pages.Answer{}, err
	}
	list := pages.ListURL(r, ui.DevicePath(d.ID, "screen"), "kind", "since", "until")
	f, err := s.calls.PictureFilter(r)
	f.Device = d.ID
	page.Gallery, err = s.calls.Gallery(r, list, f, err)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(list.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	if len(list.Values) == 0 {
		page.Latest = page.Head.Thumb
	}
	return pages.Show(page.Page())
}
