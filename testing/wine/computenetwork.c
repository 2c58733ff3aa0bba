// A stand-in for HNS: networks, endpoints and load balancers are JSON texts in memory, of one process. It is
// computenetwork.dll and, for the version of HNS, vmcompute.dll. It refuses what the real one is known to refuse, and
// does not interpret the texts otherwise. Set HNS_NO_MODIFY for a version that cannot change load balancers, and HNS_ERROR
// to a code, as 0x800706b5, for an HNS whose calls fail with it.
#include <objbase.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#define API __declspec(dllexport) HRESULT WINAPI

enum { NETWORK_NOT_FOUND = 0x803b0001, ENDPOINT_NOT_FOUND = 0x803b0002, PORT_ALREADY_EXISTS = 0x803b0013 };

typedef struct object {
	struct object *next;
	wchar_t id[37];
	wchar_t *settings;
} object;

static object *networks, *endpoints, *balancers;
static CRITICAL_SECTION lock;

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved) {
	(void)self, (void)reserved;
	if (reason == DLL_PROCESS_ATTACH)
		InitializeCriticalSection(&lock);
	return TRUE;
}

// answer returns a text that the caller frees.
static wchar_t *answer(const wchar_t *text) {
	wchar_t *copy = CoTaskMemAlloc((wcslen(text) + 1) * sizeof *copy);
	return wcscpy(copy, text);
}

static HRESULT refuse(HRESULT code, const wchar_t *why, wchar_t **result) {
	wchar_t text[256];
	swprintf(text, 256, L"{\"Success\":false,\"Error\":\"%ls\",\"ErrorCode\":%u}", why, (unsigned)code);
	*result = answer(text);
	return code;
}

static void format(const GUID *id, wchar_t text[37]) {
	wchar_t braced[39];
	StringFromGUID2(id, braced, 39);
	wcsncpy(text, braced + 1, 36);
	text[36] = 0;
}

static object **find(object **list, const wchar_t *id) {
	while (*list && _wcsicmp((*list)->id, id))
		list = &(*list)->next;
	return list;
}

// value copies what follows a name up to one of the end characters, or a whole list.
static wchar_t *value(const wchar_t *text, const wchar_t *name, const wchar_t *ends) {
	const wchar_t *at = wcsstr(text, name);
	if (!at)
		return _wcsdup(L"");
	at += wcslen(name);
	wchar_t *copy = _wcsdup(at);
	copy[wcscspn(at, ends)] = 0;
	return copy;
}

static BOOL same(const wchar_t *a, const wchar_t *b, const wchar_t *name, const wchar_t *ends) {
	wchar_t *x = value(a, name, ends), *y = value(b, name, ends);
	BOOL equal = !_wcsicmp(x, y);
	free(x), free(y);
	return equal;
}

// matches tells whether an object matches a query, whose filter is JSON within JSON: "{\"Name\":\"cbr0\"}".
static BOOL matches(const object *o, const wchar_t *query) {
	static const wchar_t *const filters[][2] = {
		{L"\\\"Name\\\":\\\"", L"\"Name\":\""},
		{L"\\\"VirtualNetwork\\\":\\\"", L"\"HostComputeNetwork\":\""},
	};
	BOOL all = TRUE;
	for (int i = 0; i < 2; i++) {
		if (!wcsstr(query, filters[i][0]))
			continue;
		wchar_t *want = value(query, filters[i][0], L"\\"), *is = value(o->settings, filters[i][1], L"\"");
		all = all && !_wcsicmp(want, is);
		free(want), free(is);
	}
	return all;
}

// forced returns HNS_ERROR, or S_OK.
static HRESULT forced(void) {
	wchar_t code[16];
	return GetEnvironmentVariableW(L"HNS_ERROR", code, 16) ? (HRESULT)wcstoul(code, NULL, 16) : S_OK;
}

static HRESULT enumerate(object *list, const wchar_t *query, wchar_t **ids) {
	if (forced() != S_OK)
		return forced();
	EnterCriticalSection(&lock);
	size_t n = 0;
	for (object *o = list; o; o = o->next)
		n++;
	wchar_t *text = CoTaskMemAlloc((n * 40 + 3) * sizeof *text);
	wcscpy(text, L"[");
	for (object *o = list; o; o = o->next)
		if (matches(o, query)) {
			if (text[1])
				wcscat(text, L",");
			wcscat(wcscat(wcscat(text, L"\""), o->id), L"\"");
		}
	wcscat(text, L"]");
	*ids = text;
	LeaveCriticalSection(&lock);
	return S_OK;
}

static HRESULT create(object **list, const wchar_t *settings, void **handle) {
	if (forced() != S_OK)
		return forced();
	object *o = calloc(1, sizeof *o);
	GUID id;
	CoCreateGuid(&id);
	format(&id, o->id);
	o->settings = _wcsdup(settings);
	o->next = *list;
	*handle = *list = o;
	return S_OK;
}

static HRESULT open(object **list, const GUID *id, void **handle, HRESULT missing, wchar_t **result) {
	if (forced() != S_OK)
		return forced();
	wchar_t text[37];
	format(id, text);
	EnterCriticalSection(&lock);
	*handle = *find(list, text);
	LeaveCriticalSection(&lock);
	return *handle ? S_OK : refuse(missing, L"Element not found. ", result);
}

static HRESULT query(object *o, wchar_t **properties) {
	size_t size = wcslen(o->settings) + 64;
	wchar_t *text = CoTaskMemAlloc(size * sizeof *text);
	swprintf(text, size, L"{\"ID\":\"%ls\",%ls", o->id, o->settings + 1);
	*properties = text;
	return S_OK;
}

// Objects are never freed, because there may be open handles to them.
static HRESULT delete(object **list, const GUID *id, HRESULT missing, wchar_t **result) {
	if (forced() != S_OK)
		return forced();
	wchar_t text[37];
	format(id, text);
	EnterCriticalSection(&lock);
	object **at = find(list, text);
	HRESULT code = *at ? S_OK : refuse(missing, L"Element not found. ", result);
	if (*at)
		*at = (*at)->next;
	LeaveCriticalSection(&lock);
	return code;
}

// check refuses load balancers with unknown endpoints, or without any.
static HRESULT check(const wchar_t *settings, wchar_t **result) {
	wchar_t *list = value(settings, L"\"HostComputeEndpoints\":[", L"]");
	HRESULT code = *list ? S_OK : refuse(0x803b001c, L"The reference is invalid. A Reference is required", result);
	for (wchar_t *id = wcstok(list, L"\","); code == S_OK && id; id = wcstok(NULL, L"\","))
		if (!*find(&endpoints, id))
			code = refuse(ENDPOINT_NOT_FOUND, L"The endpoint was not found. ", result);
	free(list);
	return code;
}

API HcnEnumerateNetworks(const wchar_t *q, wchar_t **ids, wchar_t **result) {
	(void)result;
	return enumerate(networks, q, ids);
}

API HcnCreateNetwork(GUID *id, const wchar_t *settings, void **handle, wchar_t **result) {
	(void)id, (void)result;
	EnterCriticalSection(&lock);
	HRESULT code = create(&networks, settings, handle);
	LeaveCriticalSection(&lock);
	return code;
}

API HcnOpenNetwork(GUID *id, void **handle, wchar_t **result) {
	return open(&networks, id, handle, NETWORK_NOT_FOUND, result);
}

API HcnQueryNetworkProperties(void *handle, const wchar_t *q, wchar_t **properties, wchar_t **result) {
	(void)q, (void)result;
	return query(handle, properties);
}

API HcnDeleteNetwork(GUID *id, wchar_t **result) { return delete(&networks, id, NETWORK_NOT_FOUND, result); }

API HcnCloseNetwork(void *handle) {
	(void)handle;
	return S_OK;
}

API HcnEnumerateEndpoints(const wchar_t *q, wchar_t **ids, wchar_t **result) {
	(void)result;
	return enumerate(endpoints, q, ids);
}

API HcnCreateEndpoint(void *network, GUID *id, const wchar_t *settings, void **handle, wchar_t **result) {
	(void)network, (void)id, (void)result;
	EnterCriticalSection(&lock);
	HRESULT code = create(&endpoints, settings, handle);
	LeaveCriticalSection(&lock);
	return code;
}

API HcnOpenEndpoint(GUID *id, void **handle, wchar_t **result) {
	return open(&endpoints, id, handle, ENDPOINT_NOT_FOUND, result);
}

API HcnQueryEndpointProperties(void *handle, const wchar_t *q, wchar_t **properties, wchar_t **result) {
	(void)q, (void)result;
	return query(handle, properties);
}

API HcnDeleteEndpoint(GUID *id, wchar_t **result) { return delete(&endpoints, id, ENDPOINT_NOT_FOUND, result); }

API HcnCloseEndpoint(void *handle) {
	(void)handle;
	return S_OK;
}

API HcnEnumerateLoadBalancers(const wchar_t *q, wchar_t **ids, wchar_t **result) {
	(void)result;
	return enumerate(balancers, q, ids);
}

API HcnCreateLoadBalancer(GUID *id, const wchar_t *settings, void **handle, wchar_t **result) {
	(void)id;
	EnterCriticalSection(&lock);
	HRESULT code = check(settings, result);
	for (object *o = balancers; code == S_OK && o; o = o->next)
		if (same(o->settings, settings, L"\"FrontendVIPs\":", L"]") &&
		    same(o->settings, settings, L"\"ExternalPort\":", L",}") &&
		    same(o->settings, settings, L"\"Protocol\":", L",}"))
			code = refuse(PORT_ALREADY_EXISTS, L"The specified port already exists. ", result);
	if (code == S_OK)
		code = create(&balancers, settings, handle);
	LeaveCriticalSection(&lock);
	return code;
}

API HcnOpenLoadBalancer(GUID *id, void **handle, wchar_t **result) {
	return open(&balancers, id, handle, HRESULT_FROM_WIN32(ERROR_NOT_FOUND), result);
}

API HcnModifyLoadBalancer(void *handle, const wchar_t *settings, wchar_t **result) {
	object *o = handle;
	if (GetEnvironmentVariableW(L"HNS_NO_MODIFY", NULL, 0))
		return refuse(E_NOTIMPL, L"Not implemented", result);
	EnterCriticalSection(&lock);
	HRESULT code = check(settings, result);
	if (code == S_OK)
		o->settings = _wcsdup(settings);
	LeaveCriticalSection(&lock);
	return code;
}

API HcnQueryLoadBalancerProperties(void *handle, const wchar_t *q, wchar_t **properties, wchar_t **result) {
	(void)q, (void)result;
	return query(handle, properties);
}

API HcnDeleteLoadBalancer(GUID *id, wchar_t **result) {
	return delete(&balancers, id, HRESULT_FROM_WIN32(ERROR_NOT_FOUND), result);
}

API HcnCloseLoadBalancer(void *handle) {
	(void)handle;
	return S_OK;
}

API HNSCall(const wchar_t *method, const wchar_t *path, const wchar_t *request, wchar_t **response) {
	(void)method, (void)request;
	*response = answer(wcscmp(path, L"/globals/version")
				   ? L"{\"Success\":false,\"Error\":\"not here\"}"
				   : L"{\"Success\":true,\"Output\":{\"Major\":15,\"Minor\":5}}");
	return S_OK;
}
