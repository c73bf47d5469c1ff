package ui

import (
	"context"
	"net/http"
)

// NotFound is the page for an address, or an object, that does not exist.
func NotFound(ctx context.Context) ErrorPage {
	return ErrorPage{Status: http.StatusNotFound, Code: "not_found",
		Title: t(ctx, "error.not_found"), Advice: t(ctx, "error.not_found_advice")}
}

// Forbidden is the page for an act that the operator's role does not allow.
func Forbidden(ctx context.Context, detail string) ErrorPage {
	return ErrorPage{Status: http.StatusForbidden, Code: "forbidden", Detail: detail,
		Title: t(ctx, "error.forbidden"), Unchanged: t(ctx, "error.unchanged"), Advice: t(ctx, "error.forbidden_advice")}
}

// Failure is the page for every other error; detail is the domain's own sentence, if any.
func Failure(ctx context.Context, status int, code, detail string) ErrorPage {
	advice := "error.retry_advice"
	if status < http.StatusInternalServerError {
		advice = "error.mend_advice"
	}
	return ErrorPage{Status: status, Code: code, Detail: detail,
		Title: t(ctx, "error.failed"), Unchanged: t(ctx, "error.unchanged"), Advice: t(ctx, advice)}
}
