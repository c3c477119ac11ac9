import { overlay } from "../base/overlay.ts";
import { inOption } from "../base/validation.ts";
import type { ChatService } from "../services/chat-service.ts";
import { openService, type ServiceSource } from "../services/open-service.ts";

/**
 * Opens the service of an option. If the option is a service already, the `close` of the result does
 * nothing: the caller, who made the service, closes it.
 *
 * @param option names it in errors
 * @throws NlacError ERR_CONFIG, ERR_IO
 */
export function openServiceOption(option: string, source: ServiceSource): ChatService {
  const service = inOption(option, () => openService(source));
  return service === source ? overlay(service, { close: async () => {} }) : service;
}
