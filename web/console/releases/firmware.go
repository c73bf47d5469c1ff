package releases

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// firmwareRoutes are the pages of images and releases.
func (s *Server) firmwareRoutes() []pages.Route {
	const viewer, operator, admin = fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin
	image, release := ui.PathImages+"/{image}", ui.PathReleases+"/{release}"
	return []pages.Route{
		{Method: "GET", Pattern: ui.PathFirmware, Role: viewer, Reach: access.Shared, Page: s.listReleases},
		{Method: "GET", Pattern: ui.PathImages, Role: viewer, Reach: access.Shared, Page: s.listImages},
		{Method: "POST", Pattern: ui.PathImages, Role: operator, Reach: access.Fleet,
			Raw: s.uploadImages, Body: uploadsBytes, Heavy: heavy.Upload},
		{Method: "POST", Pattern: ui.PathImages + "/confirm", Role: operator, Reach: access.Fleet, Page: s.confirmImages},
		{Method: "GET", Pattern: image, Role: viewer, Reach: access.Shared, Page: s.showImage},
		{Method: "POST", Pattern: image + "/edit", Role: operator, Reach: access.Fleet, Page: s.editImage},
		{Method: "POST", Pattern: image + "/manifest", Role: operator, Reach: access.Fleet,
			Page: s.signImage, Body: manifestFormBytes, Heavy: heavy.Upload},
		{Method: "POST", Pattern: image + "/revoke", Role: admin, Reach: access.Fleet, Page: s.revokeImage},
		{Method: "POST", Pattern: image + "/delete", Role: operator, Reach: access.Fleet, Page: s.deleteImage},
		{Method: "GET", Pattern: ui.PathReleaseNew, Role: operator, Reach: access.Fleet, Page: s.newRelease},
		{Method: "POST", Pattern: ui.PathReleases, Role: operator, Reach: access.Fleet, Page: s.createRelease},
		{Method: "GET", Pattern: release, Role: viewer, Reach: access.Shared, Page: s.showRelease},
		{Method: "GET", Pattern: release + "/edit", Role: operator, Reach: access.Fleet, Page: s.showReleaseEdit},
		{Method: "POST", Pattern: release + "/edit", Role: operator, Reach: access.Fleet, Page: s.editRelease},
		{Method: "POST", Pattern: release + "/state", Role: operator, Reach: access.Fleet, Page: s.setReleaseState},
		{Method: "POST", Pattern: release + "/revoke", Role: admin, Reach: access.Fleet, Page: s.revokeRelease},
	}
}

// Maximum lengths of lists on firmware pages.
const (
	countedCampaigns = fleet.MaxLimit // the newest; older ones are not counted with their release
	searchedReleases = fleet.MaxLimit // the newest; an image's page lists those that contain it
	offeredBoards    = 100
	offeredDrafts    = 20
)

func (s *Server) listReleases(r *http.Request) (pages.Answer, error) {
	ctx := r.Context()
	page := ui.ReleasesPage{List: pages.ListURL(r, ui.PathFirmware, "state"), CanAct: pages.MayKeepFirmware(ctx)}
	f := firmware.ReleaseFilter{Limit: pages.LimitOf(page.List), Cursor: page.List.Get("cursor")}
	if state := firmware.ReleaseState(page.List.Get("state")); slices.Contains(firmware.ReleaseStates, state) {
		f.State = state
	}
	found, err := s.Firmware.Releases(ctx, f)
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	if page.Rows, err = s.releaseRows(ctx, found.Items); err != nil {
		return pages.Answer{}, err
	}
	page.Next = found.Next
	if len(page.Rows) == 0 && page.List.Path == ui.PathFirmware && len(page.List.Values) == 0 {
		if page.Empty, err = s.noImages(ctx); err != nil {
			return pages.Answer{}, err
		}
		if page.Upload, err = s.uploadBox(ctx); err != nil {
			return pages.Answer{}, err
		}
	}
	return pages.Show(page.Page())
}

// releaseRows counts, for each release, the devices that run it and the campaigns that used it.
func (s *Server) releaseRows(ctx context.Context, all []firmware.Release) (rows []ui.ReleaseRow, err error) {
	var elves []string
	for _, r := range all {
		elves = append(elves, builds(r.Images)...)
	}
	running, err := s.runningBuilds(ctx, elves)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	used, err := s.campaignsByRelease(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		rows = append(rows, ui.NewReleaseRow(r, running.of(builds(r.Images)), used[r.ID]))
	}
	return rows, nil
}

// builds returns the different builds of some images.
func builds(images []firmware.Image) (elves []string) {
	for _, i := range images {
		if i.ELFSHA256 != "" { // without it, devices with the build cannot be recognized
			elves = append(elves, i.ELFSHA256)
		}
	}
	slices.Sort(elves)
	return slices.Compact(elves)
}

// A runningCount counts the devices by build.
type runningCount struct {
	byELF map[string]int
	fleet int
}

func (s *Server) runningBuilds(ctx context.Context, elves []string) (c runningCount, err error) {
	devices, err := s.devices.Size(ctx)
	if err != nil {
		return c, err
	}
	slices.Sort(elves)
	c.fleet = devices
	c.byELF, err = s.Firmware.RunningByELF(ctx, slices.Compact(elves))
	return c, err
}

func (c runningCount) of(elves []string) ui.Running {
	r := ui.Running{Fleet: c.fleet}
	for _, elf := range elves {
		r.Count += c.byELF[elf]
	}
	return r
}

func (s *Server) campaignsByRelease(ctx context.Context) (map[uuid.UUID]int, error) {
	found, err := s.Campaigns.Campaigns(ctx, campaign.Filter{Limit: countedCampaigns})
	used := make(map[uuid.UUID]int)
	for _, c := range found.Items {
		used[c.Plan.Release]++
	}
	return used, err
}

func (s *Server) noImages(ctx context.Context) (bool, error) {
	found, err := s.Firmware.Images(ctx, firmware.ImageFilter{Limit: 1})
	return len(found.Items) == 0, err
}

func (s *Server) listImages(r *http.Request) (pages.Answer, error) {
	page, err := s.imagesPage(r.Context(), pages.ListURL(r, ui.PathImages, "chip", "board"))
	if pages.ErrorCode(err) == "invalid_cursor" {
		return pages.GoTo(page.List.At(""))
	}
	if err != nil {
		return pages.Answer{}, err
	}
	return pages.Show(page.Page())
}

func (s *Server) imagesPage(ctx context.Context, list ui.ListURL) (ui.ImagesPage, error) {
	page := ui.ImagesPage{List: list, CanAct: pages.MayKeepFirmware(ctx)}
	found, err := s.Firmware.Images(ctx, firmware.ImageFilter{Chip: list.Get("chip"), Board: list.Get("board"),
		Limit: pages.LimitOf(list), Cursor: list.Get("cursor")})
	if err != nil {
		return page, err
	}
	if page.Rows, err = s.imageRows(ctx, found.Items); err != nil {
		return page, err
	}
	page.Next = found.Next
	page.Empty = len(page.Rows) == 0 && len(list.Values) == 0
	if page.Upload, err = s.uploadBox(ctx); err != nil {
		return page, err
	}
	page.Chips, err = s.knownChips(ctx, list.Get("chip"), page.Rows)
	return page, err
}

func (s *Server) imageRows(ctx context.Context, images []firmware.Image) (rows []ui.ImageRow, err error) {
	running, err := s.runningBuilds(ctx, builds(images))
	if err != nil {
		return nil, err
	}
	limits, err := s.Firmware.Limits(ctx, images)
	for _, i := range images {
		row := ui.NewImageRow(i, running.of([]string{i.ELFSHA256}), pages.MayKeepFirmware(ctx))
		row.Withheld = whyWithheld(ctx, limits.Why(i, ""))
		rows = append(rows, row)
	}
	return rows, err
}

// whyWithheld returns the reason, in the page's language, why no device would get an image today.
func whyWithheld(ctx context.Context, why fleet.Reason) string {
	if why.Is("") {
		return ""
	}
	return pages.Explain(ctx, &fleet.Error{Code: why.Code, Params: why.Params})
}

// knownChips returns the chips of the fleet and of the images on the page.
func (s *Server) knownChips(ctx context.Context, asked string, rows []ui.ImageRow) ([]string, error) {
	counts, err := s.Devices.CountBy(ctx, fleet.Query{}, "chip")
	chips := []string{asked}
	for _, c := range counts {
		chips = append(chips, c.Value)
	}
	for _, i := range rows {
		chips = append(chips, i.Chip)
	}
	slices.Sort(chips)
	chips = slices.Compact(chips)
	return slices.DeleteFunc(chips, func(c string) bool { return c == "" }), err
}

func (s *Server) uploadBox(ctx context.Context) (box ui.UploadBox, err error) {
	if box.Boards, err = s.boardsOf(ctx, fleet.Query{}); err != nil {
		return box, err
	}
	drafts, err := s.Firmware.Releases(ctx, firmware.ReleaseFilter{State: firmware.ReleaseDraft, Limit: offeredDrafts})
	box.Drafts = drafts.Items
	return box, err
}

// boardsOf returns the boards of the matching devices, most frequent first.
func (s *Server) boardsOf(ctx context.Context, q fleet.Query) (boards []string, err error) {
	counts, err := s.Devices.CountBy(ctx, q, "board")
	for _, c := range counts[:min(len(counts), offeredBoards)] {
		if c.Value != "" {
			boards = append(boards, c.Value)
		}
	}
	return boards, err
}

// image reads the image in the address.
func (s *Server) image(r *http.Request) (firmware.Image, error) {
	sum, err := url.PathUnescape(chi.URLParam(r, "image"))
	if err != nil || !isSHA256(sum) {
		return firmware.Image{}, pages.ErrNoPage
	}
	return s.Firmware.Image(r.Context(), sum)
}

func isSHA256(s string) bool {
	return len(s) == 64 && !slices.ContainsFunc([]byte(s), func(c byte) bool {
		return (c < '0' || c > '9') &&
			(c < 'a' || c > 'f')
	})
}

// release reads the release in the address.
func (s *Server) release(r *http.Request) (firmware.Release, error) {
	id, err := uuid.Parse(chi.URLParam(r, "release"))
	if err != nil {
		return firmware.Release{}, pages.ErrNoPage
	}
	return s.Firmware.Release(r.Context(), id)
}
